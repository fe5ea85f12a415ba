"""`millstream completion`: prints the script with which a shell completes `millstream`."""

from __future__ import annotations

import argparse

_BASH = r"""# Completion of millstream for bash: eval "$(millstream completion bash)"
_millstream() {
    local -a found
    mapfile -t found < <("${COMP_WORDS[0]/#\~/$HOME}" __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=("${found[@]:1}")
    if [[ ${found[0]} == paths ]]; then
        # Bash quotes names that need it, and appends a slash to directories.
        compopt -o filenames
        COMPREPLY=("${COMPREPLY[@]%/}")
    fi
}
complete -F _millstream millstream
"""
_ZSH = r"""#compdef millstream
# Completion of millstream for zsh: as _millstream in a directory of $fpath, or source <(millstream completion zsh)
_millstream() {
    local -a found described paths
    local line word
    found=("${(@f)$(${~words[1]} __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $found[1] == paths ]]; then
        for line in "${(@)found[2,-1]}"; do
            word=${line%%$'\t'*}
            [[ -n $word ]] && paths+=("$word")
        done
        compadd -Q -S '' -- "${(@q)paths}"
        return
    fi
    for line in "${(@)found[2,-1]}"; do
        word=${line%%$'\t'*}
        [[ -n $word ]] && described+=("${word//:/\\:}:${line#*$'\t'}")
    done
    _describe -V millstream described
}
if [[ $funcstack[1] == _millstream ]]; then
    _millstream "$@"
else
    compdef _millstream millstream
fi
"""
_FISH = r"""# Completion of millstream for fish: millstream completion fish | source
function __millstream_candidates
    set -l words (commandline -opc)
    $words[1] __complete fish $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c millstream -f -a '(__millstream_candidates)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(arguments: argparse.Namespace) -> int:
    print(SCRIPTS[arguments.shell], end="")
    return 0
