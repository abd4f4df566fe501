# The worker image for `--sdk_container_image` (Dataflow, Flink): Beam's own, plus this package and
# its `beam` and `video` extras at the versions of constraints.txt. Build it with the Python of the
# launcher.
FROM apache/beam_python3.11_sdk:2.77.0 AS build
WORKDIR /src
COPY setup.py pyproject.toml README.md LICENSE ./
COPY zephon_beam ./zephon_beam
COPY transforms ./transforms
COPY pipelines ./pipelines
RUN python -m pip wheel --no-deps --wheel-dir /wheels .

FROM apache/beam_python3.11_sdk:2.77.0
COPY constraints.txt /opt/zephon-beam/constraints.txt
COPY --from=build /wheels /opt/zephon-beam/wheels
RUN python -m pip install --no-cache-dir --constraint /opt/zephon-beam/constraints.txt \
        --find-links /opt/zephon-beam/wheels 'zephon-beam[beam,video]==0.1.0' \
    && python -m pip check
# The worker's start is Beam's boot program, not ours.
ENTRYPOINT ["/opt/apache/beam/boot"]
