"""`scripts/soak [SECONDS] [CASE…]`: run the cases and print what each found; exit code 1 if any is wrong."""

from __future__ import annotations

import sys

from soak.cases import CASES, Size


def main(arguments: list[str]) -> int:
    """60 seconds and all cases, unless told otherwise."""
    seconds = float(arguments[0]) if arguments else 60.0
    names = arguments[1:] or list(CASES)
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        print(f"no case {', '.join(unknown)}; known are {', '.join(CASES)}", file=sys.stderr)
        return 2
    size = Size(writers=16, readers=4, seconds=seconds, kills=200)
    wrong = 0
    for name in names:
        outcome = CASES[name](size)
        print(f"{name}: {outcome.text}", flush=True)
        for line in outcome.wrong[:10]:
            print(f"  {line}")
        wrong += len(outcome.wrong)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
