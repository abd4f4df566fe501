# Sourced by the scripts beside it: finds working interpreters on PATH and among pyenv's.

# python_for VERSION: prints a working interpreter of that minor version, or nothing.
python_for() {
    local version=$1 candidate
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        # A pyenv shim may exist and still refuse to run, so ask.
        if "$candidate" -c "import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    if python3 -c "import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
        >/dev/null 2>&1; then
        command -v python3
    fi
}

# first_python VERSION…: prints the first of these that exists, or nothing.
first_python() {
    local version found
    for version in "$@"; do
        found=$(python_for "$version")
        if [[ -n "$found" ]]; then
            echo "$found"
            return
        fi
    done
}
