"""The vendors that a person named for a conversation: one, or a list of which the first that can start begins."""

from collections.abc import Mapping, Sequence

from shim.core.errors import FrontendError, ModeError, Tried, VendorError, tried
from shim.core.vendor.vendor import Vendor
from shim.process.find_program import find_launcher, find_program
from shim.state.config import Settings
from shim.vendors import VENDORS, find

MOST_VENDORS = 8  # of a list: each may take its time before the next is asked
# Said for one run, of one program: of a list, the first one's.
OF_ONE_VENDOR = ("SHIM_BIN", "SHIM_ARGS")


class Listing:
    """`names` in their order. FrontendError for one that is no vendor, and for more of them than there may be.

    `skipped` are those that cannot start; `left` are the others, of which the first begins. `interactive`: each call
    waits for its answer (Yume).
    """

    def __init__(
        self,
        names: Sequence[str],
        settings: Settings,
        environment: Mapping[str, str],
        *,
        cwd: str,
        flat: bool,
        interactive: bool,
    ) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._settings = settings
        self._environment = environment
        self._cwd = cwd
        self._interactive = interactive
        self.several = len(self._names) > 1
        self.translated = flat or self.several  # no line of a real claude passes as it is: another one may answer
        self.skipped: list[Tried] = []
        self.left = self._names
        if len(self._names) > MOST_VENDORS:
            raise FrontendError(f"{len(self._names)} vendors are listed, there may be {MOST_VENDORS}")
        for name in self._names if self.several else ():
            if name not in VENDORS:
                find(name)

    def first(self, mode: str) -> Vendor:
        """The vendor that begins: the first that can start in a permission mode, else the last one.

        That one's turn will say why it cannot either.
        """
        while len(self.left) > 1:
            vendor = find(self.left[0], flat=True)
            try:
                self._able(vendor, mode)
                break
            except (VendorError, ModeError) as error:
                self.skipped.append(tried(vendor.name, error.cause, str(error)))
                self.left = self.left[1:]
        vendor = find(self.left[0], flat=self.translated)
        if not self.several:
            self.interactive(vendor)
        return vendor

    def _able(self, vendor: Vendor, mode: str) -> None:
        """Raise why a vendor cannot be started, as far as that is known before."""
        vendor.mode_arguments(mode)
        self.interactive(vendor)
        own = self._settings.of(vendor.name)
        find_launcher(own.launcher, self._environment, self._cwd)
        if not vendor.bundled:
            find_program(vendor, own, self.environment(vendor.name), self._cwd)

    def interactive(self, vendor: Vendor) -> None:
        """ModeError for a vendor that asks nobody, where each call is to wait for an answer."""
        if self._interactive:
            vendor.wait_for_answers()

    def environment(self, name: str) -> Mapping[str, str]:
        """What a vendor of the list is started from."""
        if name == self._names[0] or not any(key in self._environment for key in OF_ONE_VENDOR):
            return self._environment
        return {key: value for key, value in self._environment.items() if key not in OF_ONE_VENDOR}

    def model(self, name: str, model: str | None) -> str | None:
        """A model is one vendor's: a name without a prefix is meant for the first of the list."""
        return model if name == self._names[0] else None
