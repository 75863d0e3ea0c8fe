"""The SAEs that are attached, each with its hook, and the sites of directions.

The weights of an SAE stay on the host, where the few decoder rows that steer are summed. The encoder of an SAE is
copied to the device of its site when activations are first read there. A compiled model skips hooks that are added
later, so no model is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from steerserve.errors import Refusal
from steerserve.rules.steering.edits import Feature
from steerserve.rules.steering.vector import Direction
from steerserve.worker import memory
from steerserve.worker.hooks.called_sites import PlaceName
from steerserve.worker.hooks.places import HookedSae, Place, name_of
from steerserve.worker.hooks.site_passes import SitePasses
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

_PACKED_SHARE = 4
"""The encoder of an SAE is packed where its copy takes at most one part in this many of the free memory."""

CheckRoom = Callable[[torch.device, int], None]

FindSite = Callable[[str, int], Site]
"""The site of this name at this layer; refused where the model does not have it."""


class AttachedSaes:
    """Owner of the attached SAEs and of the hooked sites. `version` rises with each change of what steers.

    `check_room` refuses where a device lacks memory for so many bytes. `on_detach` is called with the number of each
    SAE that is taken away. `find_site` finds the sites of directions.
    """

    def __init__(
        self,
        check_room: CheckRoom,
        on_detach: Callable[[int], None],
        find_site: FindSite | None,
    ) -> None:
        self._check_room = check_room
        self._on_detach = on_detach
        self._find_site = find_site
        self._attachments: dict[str, HookedSae] = {}
        self._places: dict[PlaceName, Place] = {}
        self._found: dict[tuple[str, int], Site] = {}
        self._sites = SitePasses()
        self.version = 0

    @property
    def applied(self) -> dict[str, int]:
        """By key, the number of forward passes since the SAE was attached in which its delta was added."""
        return {key: attachment.applied for key, attachment in self._attachments.items()}

    def uncount(self, applied: Mapping[str, int]) -> None:
        """Count as before a pass that was stopped and runs again. `applied` is what was counted before the pass."""
        for key, count in applied.items():
            self._attachments[key].applied = count

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the attached SAEs. A recorded pass has the hooks of these SAEs."""
        return tuple(attachment.number for attachment in self._attachments.values())

    def held_memory(self) -> Iterator[memory.Held]:
        """What the attached SAEs hold in memory, with the copies that reading activations needs."""
        for attachment in self._attachments.values():
            yield from attachment.sae.held_memory()
            if attachment.reader is not None:
                yield from attachment.reader.held_memory()

    def attach(self, key: str, sae: Sae, site: Site) -> None:
        """Hook the SAE to its site. An SAE that is at `key` already is detached first."""
        if key in self._attachments:
            self.detach(key)
        self.version += 1
        attachment = HookedSae(sae, site, site.device, self.version)
        place = self._place(site)
        held = {**place.saes, key: attachment}
        # where a later hook of a module runs before the earlier ones, so does a later SAE
        order = (key, *place.saes) if site.is_prepended else tuple(held)
        place.saes = {name: held[name] for name in order}
        if place.handle is None:
            place.handle = site.hook(partial(self._sites.act, place))
        self._attachments[key] = attachment

    def detach(self, key: str) -> None:
        """Take the hook and the weights of the SAE at `key` away.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attachment = self.find(key)
        self.version += 1
        del self._attachments[key]
        place = self._place(attachment.site)
        del place.saes[key]
        if not place.saes:
            del self._places[name_of(attachment.site)]
            if place.handle:
                place.handle.remove()
        self._on_detach(attachment.number)

    def sae(self, key: str) -> Sae:
        """The SAE at `key` with its encoder on the site's device.

        Raises:
            Refusal: SAE_NOT_ATTACHED; INSUFFICIENT_MEMORY when the encoder must be copied there first and does not fit.
        """
        return self._reader(self.find(key))

    def find(self, key: str) -> HookedSae:
        """The attached SAE at `key`, with its site and its state.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        if key not in self._attachments:
            raise Refusal("SAE_NOT_ATTACHED", "the SAE was detached")
        return self._attachments[key]

    def held(self, key: str) -> Sae:
        """The SAE at `key` as the host holds it.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self.find(key).sae

    # ------------------------------------------------------------- for passes

    def _reader(self, attachment: HookedSae) -> Sae:
        if attachment.reader is None:
            if attachment.sae.W_enc.device != attachment.device:
                self._check_room(attachment.device, attachment.sae.encoder_bytes)
            attachment.reader = self._packed(attachment.sae.encoder_to(attachment.device))
        return attachment.reader

    def _packed(self, sae: Sae) -> Sae:
        """The SAE with a packed copy of its encoder, where the host has plenty of memory for the copy."""
        device = sae.W_enc.device
        if device.type != "cpu" or not sae.may_pack:
            return sae
        try:
            self._check_room(device, _PACKED_SHARE * sae.W_enc.nbytes)
        except Refusal:
            return sae
        return sae.packed_encoder()

    def _place(self, site: Site) -> Place:
        return self._places.setdefault(name_of(site), Place(site))

    def _site(self, direction: Direction) -> Site:
        """Raises:
        Refusal: SAE_INCOMPATIBLE where the model does not have the site.
        """
        at = direction.site, direction.layer
        if at not in self._found:
            if self._find_site is None:
                raise Refusal("SAE_INCOMPATIBLE", "this model has no sites for directions")
            self._found[at] = self._find_site(*at)
        return self._found[at]

    def _check_width(self, direction: Direction, site: Site) -> None:
        if direction.width != site.width:
            raise Refusal(
                "INVALID_PARAMETER",
                f"a direction of {direction.width} numbers does not fit {direction.site} of layer {direction.layer}, "
                f"which has {site.width}",
                param="interventions",
            )

    def _name_of(self, at: Feature | Direction) -> PlaceName:
        return name_of(self.find(at.key).site if isinstance(at, Feature) else self._site(at))

    def _found_at(self, name: PlaceName) -> Site:
        return next(site for site in self._found.values() if name_of(site) == name)

    def _device_of(self, name: PlaceName) -> torch.device:
        place = self._places.get(name)
        return (place.site if place else self._found_at(name)).device
