"""A client's Open, checked as far as possible without data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.access import EVERYTHING, Access
from feedd.catalog.token_windows import Cuts, windows_of
from feedd.dataset.sharding import check_mode
from feedd.dataset.step_counts import parse_uneven
from feedd.errors import Unsupported
from feedd.ordering.mixed_reader import mix_facts
from feedd.recipe.bad_sample_policy import BadSamples, parse_policy
from feedd.recipe.filters import Filter, filter_text, parse_filter
from feedd.recipe.packed_rows import check_packing
from feedd.recipe.predecoded import crop_friendly
from feedd.recipe.recipe import parse_field
from feedd.values import FieldRecipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.dataset.listing import Listing
    from feedd.open_spec import OpenSpec

PACKS_PER_WINDOW: Final = 16  # about 320 MiB


@dataclass(frozen=True, slots=True)
class Request:
    """A client's Open, checked as far as possible without data.

    Attributes:
        spec: the request as it came.
        wanted: recipes of each source; empty: the data decides.
        window_shards: shards per shuffle window.
        mix: facts of the mixture; None: there is only one source.
        cuts: how each source's recipe splits files of tokens; empty: no recipe does.
        filters: conditions that samples must meet.
        policy: what to do with bad samples.
        access: what the client may read.
    """

    spec: OpenSpec
    wanted: tuple[tuple[FieldRecipe, ...], ...]
    window_shards: int
    mix: dict[str, object] | None
    cuts: Cuts = ()
    filters: tuple[Filter, ...] = ()
    policy: BadSamples = BadSamples.SKIP
    access: Access = EVERYTHING

    @classmethod
    def of(cls, spec: OpenSpec, window_shards: int, access: Access = EVERYTHING) -> Request:
        """Check names, recipes and weights.

        Args:
            spec: the request as it came.
            window_shards: the daemon's default.
            access: what the client may read.

        Raises:
            BadRequest: the request cannot be served.
        """
        check_mode(spec.order.sharding)
        parse_uneven(spec.order.uneven)
        fields = [source.fields for source in spec.data.sources] or [spec.data.fields]
        wanted = tuple(tuple(parse_field(name, text) for name, text in one) for one in fields)
        if spec.data.decoded_cache:
            wanted = tuple(tuple(map(crop_friendly, one)) for one in wanted)
        check_packing(spec, wanted)
        mix = mix_facts(spec.order, spec.data.sources, wanted) if spec.data.sources else None
        cuts = tuple(windows_of(one) for one in wanted)
        if spec.order.bucket_by and (spec.data.sources or not spec.order.shuffle):
            raise Unsupported(
                "expected a single, shuffled dataset for bucket_by, got another request",
                object="bucket_by",
                hint="leave bucket_by out, or use Shuffle(bucket_by=...) with one url",
                stage="plan",
            )
        filters = tuple(map(parse_filter, spec.data.filters))
        policy = parse_policy(spec.data.bad_samples)
        window_shards = spec.order.window_shards or window_shards
        return cls(spec, wanted, window_shards, mix, cuts if any(cuts) else (), filters, policy, access)

    @property
    def sources(self) -> tuple[tuple[str, ...], ...]:
        """URLs of each source."""
        return tuple(source.urls for source in self.spec.data.sources) or (self.spec.data.urls,)

    def window(self, listing: Listing) -> int:
        """Return the shards per shuffle window. The default is larger for packs, which hold neighbours of one class."""
        told = self.spec.order.window_shards or not listing.packs
        return self.window_shards if told else max(self.window_shards, PACKS_PER_WINDOW)

    @property
    def strict(self) -> bool:
        """Whether the first bad sample is an error."""
        return self.policy is BadSamples.ERROR or not self.spec.data.bad_samples_max

    @property
    def read(self) -> tuple[tuple[FieldRecipe, ...], ...]:
        """Fields to read from each source's samples: those of its recipes, its filters and ``bucket_by``."""
        return tuple(recipe and (*recipe, *self._looked_at(recipe)) for recipe in self.wanted)

    @property
    def bucket_sources(self) -> tuple[str, ...]:
        """Names that the data may use for the ``bucket_by`` field; empty without ``bucket_by``."""
        name = self.spec.order.bucket_by
        decoded = (field.sources for field in self.wanted[0] if field.name == name)
        return next(decoded, tuple(part.strip().lower() for part in name.split(";") if part.strip()))

    def _looked_at(self, recipe: tuple[FieldRecipe, ...]) -> list[FieldRecipe]:
        found = [FieldRecipe(one.field, one.sources(recipe), "bytes") for one in self.filters]
        name = self.spec.order.bucket_by
        return [*found, FieldRecipe(name, self.bucket_sources, "bytes")] if name else found

    def fingerprint(self, listing: Listing) -> bytes:
        """Return the fingerprint of a run over the listing; see ``Listing.fingerprint``."""
        plain = self.wanted[0] if self.mix is None else ()
        rules = sorted(map(filter_text, self.filters))
        if self.policy is BadSamples.REPLACE:  # changes the samples in batches; other policies only leave some out
            rules.append(f"bad_samples={self.policy.value}")
        if self.spec.data.only:
            rules.append(f"only={','.join(self.spec.data.only)}")
        return listing.fingerprint(self.spec.order, plain, self.window(listing), self.mix, rules)


def shortened(urls: Sequence[str]) -> str:
    """Return the first URL and the number of further URLs."""
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    return f"{urls[0]}{more}"
