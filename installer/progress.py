"""pip's output condensed to one line a package and phase, with the time since the start."""

import re
import sys
import time

_COLLECTING = re.compile(r"^Collecting ([A-Za-z0-9_.\-\[\]]+)==([^\s;]+)")
_UNPINNED = re.compile(r"^Collecting ([A-Za-z0-9_.\-\[\]]+)")
_CONNECTION = ("Retrying (", "NewConnectionError", "NameResolutionError", "ConnectTimeout", "ReadTimeout", "ProxyError")
CUDA_NOTE = (
    "note: this index serves the CUDA build of PyTorch, several GB. For the small CPU build, stop now "
    "and see 'Install sizes' in README.md."
)


class Progress:
    """Reads pip's lines as they come; remembers the last error for the one line that is shown on failure."""

    def __init__(self, packages: int, *, warn_of_cuda: bool) -> None:
        self._packages = packages
        self._warn_of_cuda = warn_of_cuda
        self._seen = 0
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        self.last_error = ""
        self.unreachable = False

    def read(self, line: str) -> None:
        """Take one line of pip's output."""
        line = line.strip()
        if line.startswith("ERROR:"):
            self.last_error = line.removeprefix("ERROR:").strip()
        self.unreachable = self.unreachable or any(word in line for word in _CONNECTION)
        found = _COLLECTING.match(line)
        if found:
            self._seen += 1
            self.show(f"{min(self._seen, self._packages)}/{self._packages} {found[1]} {found[2]}")
        elif unpinned := _UNPINNED.match(line):
            if self._warn_of_cuda and unpinned[1].startswith(("nvidia-", "cuda-", "triton")):
                self._warn_of_cuda = False
                self.end_line()
                print(CUDA_NOTE, flush=True)
        elif line.startswith("Installing collected packages"):
            self.show("installing")

    def show(self, text: str) -> None:
        """One step; on a terminal it replaces the line before."""
        line = f"  [{time.monotonic() - self._began:4.0f} s] {text}"
        print(f"\r\033[K{line}" if self._live else line, end="" if self._live else "\n", flush=True)

    def end_line(self) -> None:
        """Leave the replaced line as it stands."""
        if self._live:
            print(flush=True)

    def failure(self) -> str:
        """Why pip failed, in one line."""
        reason = self.last_error or "pip failed"
        return f"the package index cannot be reached: {reason}" if self.unreachable else reason
