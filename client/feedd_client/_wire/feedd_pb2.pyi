from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProtocolVersion(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class Topology(_message.Message):
    __slots__ = ("world_size", "rank", "local_world_size", "local_rank", "node_count", "node_rank")
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    world_size: int
    rank: int
    local_world_size: int
    local_rank: int
    node_count: int
    node_rank: int
    def __init__(self, world_size: _Optional[int] = ..., rank: _Optional[int] = ..., local_world_size: _Optional[int] = ..., local_rank: _Optional[int] = ..., node_count: _Optional[int] = ..., node_rank: _Optional[int] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "recipe")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    recipe: str
    def __init__(self, name: _Optional[str] = ..., recipe: _Optional[str] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("fields", "batch_size", "keys", "bad_samples_max", "bad_samples", "filters")
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BAD_SAMPLES_MAX_FIELD_NUMBER: _ClassVar[int]
    BAD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    batch_size: int
    keys: bool
    bad_samples_max: int
    bad_samples: str
    filters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., batch_size: _Optional[int] = ..., keys: _Optional[bool] = ..., bad_samples_max: _Optional[int] = ..., bad_samples: _Optional[str] = ..., filters: _Optional[_Iterable[str]] = ...) -> None: ...

class Shuffle(_message.Message):
    __slots__ = ("enabled", "window_shards", "window_bytes", "bucket_by")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SHARDS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BY_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    window_shards: int
    window_bytes: int
    bucket_by: str
    def __init__(self, enabled: _Optional[bool] = ..., window_shards: _Optional[int] = ..., window_bytes: _Optional[int] = ..., bucket_by: _Optional[str] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("urls", "fields", "weights")
    URLS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    urls: _containers.RepeatedScalarFieldContainer[str]
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    weights: _containers.RepeatedCompositeFieldContainer[Weight]
    def __init__(self, urls: _Optional[_Iterable[str]] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[Weight, _Mapping]]] = ...) -> None: ...

class Weight(_message.Message):
    __slots__ = ("epoch", "weight")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    weight: float
    def __init__(self, epoch: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class Mix(_message.Message):
    __slots__ = ("mode", "samples_per_epoch")
    MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    mode: str
    samples_per_epoch: int
    def __init__(self, mode: _Optional[str] = ..., samples_per_epoch: _Optional[int] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("version", "urls", "recipe", "topology", "shuffle", "seed", "sharding", "epoch", "prefetch_batches", "consumer_count", "consumer_index", "client_version", "expect_fingerprint", "partitions", "uneven", "share", "steps", "sources", "mix", "shared_arena", "open_id", "runs", "left_to_channel", "lanes", "decoded_cache")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    URLS_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_BATCHES_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_INDEX_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    UNEVEN_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    MIX_FIELD_NUMBER: _ClassVar[int]
    SHARED_ARENA_FIELD_NUMBER: _ClassVar[int]
    OPEN_ID_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    LEFT_TO_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    DECODED_CACHE_FIELD_NUMBER: _ClassVar[int]
    version: ProtocolVersion
    urls: _containers.RepeatedScalarFieldContainer[str]
    recipe: Recipe
    topology: Topology
    shuffle: Shuffle
    seed: int
    sharding: str
    epoch: int
    prefetch_batches: int
    consumer_count: int
    consumer_index: int
    client_version: str
    expect_fingerprint: bytes
    partitions: int
    uneven: str
    share: str
    steps: int
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    mix: Mix
    shared_arena: bool
    open_id: str
    runs: bool
    left_to_channel: _containers.RepeatedScalarFieldContainer[str]
    lanes: int
    decoded_cache: bool
    def __init__(self, version: _Optional[_Union[ProtocolVersion, _Mapping]] = ..., urls: _Optional[_Iterable[str]] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., shuffle: _Optional[_Union[Shuffle, _Mapping]] = ..., seed: _Optional[int] = ..., sharding: _Optional[str] = ..., epoch: _Optional[int] = ..., prefetch_batches: _Optional[int] = ..., consumer_count: _Optional[int] = ..., consumer_index: _Optional[int] = ..., client_version: _Optional[str] = ..., expect_fingerprint: _Optional[bytes] = ..., partitions: _Optional[int] = ..., uneven: _Optional[str] = ..., share: _Optional[str] = ..., steps: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., mix: _Optional[_Union[Mix, _Mapping]] = ..., shared_arena: _Optional[bool] = ..., open_id: _Optional[str] = ..., runs: _Optional[bool] = ..., left_to_channel: _Optional[_Iterable[str]] = ..., lanes: _Optional[int] = ..., decoded_cache: _Optional[bool] = ...) -> None: ...

class LanesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LanesResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class OpenStatusRequest(_message.Message):
    __slots__ = ("open_id",)
    OPEN_ID_FIELD_NUMBER: _ClassVar[int]
    open_id: str
    def __init__(self, open_id: _Optional[str] = ...) -> None: ...

class OpenStatusResponse(_message.Message):
    __slots__ = ("waits_for",)
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    waits_for: str
    def __init__(self, waits_for: _Optional[str] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "kind", "dtype", "shape", "ndim")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[TensorSpec.Kind]
        DENSE: _ClassVar[TensorSpec.Kind]
        RAGGED: _ClassVar[TensorSpec.Kind]
        TEXT: _ClassVar[TensorSpec.Kind]
        JSON: _ClassVar[TensorSpec.Kind]
        PADDED: _ClassVar[TensorSpec.Kind]
    KIND_UNSPECIFIED: TensorSpec.Kind
    DENSE: TensorSpec.Kind
    RAGGED: TensorSpec.Kind
    TEXT: TensorSpec.Kind
    JSON: TensorSpec.Kind
    PADDED: TensorSpec.Kind
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    NDIM_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: TensorSpec.Kind
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    ndim: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[TensorSpec.Kind, str]] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., ndim: _Optional[int] = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("version", "session_id", "specs", "fingerprint", "shard_count", "assigned_shard_count", "assigned_bytes", "steps", "arena", "slot_count", "daemon_id", "uneven", "left_out_samples", "notices", "run_batches", "batch_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SPECS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    DAEMON_ID_FIELD_NUMBER: _ClassVar[int]
    UNEVEN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    RUN_BATCHES_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: ProtocolVersion
    session_id: str
    specs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    fingerprint: bytes
    shard_count: int
    assigned_shard_count: int
    assigned_bytes: int
    steps: int
    arena: ArenaInfo
    slot_count: int
    daemon_id: str
    uneven: str
    left_out_samples: int
    notices: _containers.RepeatedCompositeFieldContainer[Notice]
    run_batches: int
    batch_bytes: int
    def __init__(self, version: _Optional[_Union[ProtocolVersion, _Mapping]] = ..., session_id: _Optional[str] = ..., specs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., fingerprint: _Optional[bytes] = ..., shard_count: _Optional[int] = ..., assigned_shard_count: _Optional[int] = ..., assigned_bytes: _Optional[int] = ..., steps: _Optional[int] = ..., arena: _Optional[_Union[ArenaInfo, _Mapping]] = ..., slot_count: _Optional[int] = ..., daemon_id: _Optional[str] = ..., uneven: _Optional[str] = ..., left_out_samples: _Optional[int] = ..., notices: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ..., run_batches: _Optional[int] = ..., batch_bytes: _Optional[int] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "text", "count", "size_bytes", "warns")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WARNS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    count: int
    size_bytes: int
    warns: bool
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ..., count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., warns: _Optional[bool] = ...) -> None: ...

class ArenaInfo(_message.Message):
    __slots__ = ("socket_path", "token", "size_bytes", "slot_bytes", "places")
    SOCKET_PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    socket_path: str
    token: bytes
    size_bytes: int
    slot_bytes: int
    places: int
    def __init__(self, socket_path: _Optional[str] = ..., token: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., places: _Optional[int] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("epoch", "step", "anchor_window", "anchor_sample", "more_anchors")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_WINDOW_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    MORE_ANCHORS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    anchor_window: int
    anchor_sample: int
    more_anchors: _containers.RepeatedCompositeFieldContainer[Anchor]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., anchor_window: _Optional[int] = ..., anchor_sample: _Optional[int] = ..., more_anchors: _Optional[_Iterable[_Union[Anchor, _Mapping]]] = ...) -> None: ...

class Anchor(_message.Message):
    __slots__ = ("window", "sample")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    window: int
    sample: int
    def __init__(self, window: _Optional[int] = ..., sample: _Optional[int] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("session_id", "next", "inline_only", "held", "heartbeat_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    INLINE_ONLY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    next: Cursor
    inline_only: bool
    held: HeldLeases
    heartbeat_ms: int
    def __init__(self, session_id: _Optional[str] = ..., next: _Optional[_Union[Cursor, _Mapping]] = ..., inline_only: _Optional[bool] = ..., held: _Optional[_Union[HeldLeases, _Mapping]] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class HeldLeases(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Release]
    def __init__(self, leases: _Optional[_Iterable[_Union[Release, _Mapping]]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("slot", "generation")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    slot: int
    generation: int
    def __init__(self, slot: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("start", "credits", "releases", "times")
    START_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    credits: int
    releases: _containers.RepeatedCompositeFieldContainer[Release]
    times: TrainerTimes
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., credits: _Optional[int] = ..., releases: _Optional[_Iterable[_Union[Release, _Mapping]]] = ..., times: _Optional[_Union[TrainerTimes, _Mapping]] = ...) -> None: ...

class TrainerTimes(_message.Message):
    __slots__ = ("wall_s", "wait_s", "steps", "pauses", "pause_s", "device", "unpinned", "copy_s")
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    COPY_S_FIELD_NUMBER: _ClassVar[int]
    wall_s: float
    wait_s: float
    steps: int
    pauses: int
    pause_s: float
    device: str
    unpinned: bool
    copy_s: float
    def __init__(self, wall_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., steps: _Optional[int] = ..., pauses: _Optional[int] = ..., pause_s: _Optional[float] = ..., device: _Optional[str] = ..., unpinned: _Optional[bool] = ..., copy_s: _Optional[float] = ...) -> None: ...

class FieldRegion(_message.Message):
    __slots__ = ("values_at", "values_bytes", "offsets_at", "shapes_at", "dims")
    VALUES_AT_FIELD_NUMBER: _ClassVar[int]
    VALUES_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_AT_FIELD_NUMBER: _ClassVar[int]
    SHAPES_AT_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    values_at: int
    values_bytes: int
    offsets_at: int
    shapes_at: int
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values_at: _Optional[int] = ..., values_bytes: _Optional[int] = ..., offsets_at: _Optional[int] = ..., shapes_at: _Optional[int] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("seq", "cursor", "rows", "regions", "size_bytes", "inline", "slot", "generation", "bad_samples", "again", "filtered", "place", "samples", "alike", "more")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BAD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ALIKE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    cursor: Cursor
    rows: int
    regions: _containers.RepeatedCompositeFieldContainer[FieldRegion]
    size_bytes: int
    inline: bool
    slot: int
    generation: int
    bad_samples: int
    again: bytes
    filtered: int
    place: int
    samples: int
    alike: int
    more: _containers.RepeatedCompositeFieldContainer[Batch]
    def __init__(self, seq: _Optional[int] = ..., cursor: _Optional[_Union[Cursor, _Mapping]] = ..., rows: _Optional[int] = ..., regions: _Optional[_Iterable[_Union[FieldRegion, _Mapping]]] = ..., size_bytes: _Optional[int] = ..., inline: _Optional[bool] = ..., slot: _Optional[int] = ..., generation: _Optional[int] = ..., bad_samples: _Optional[int] = ..., again: _Optional[bytes] = ..., filtered: _Optional[int] = ..., place: _Optional[int] = ..., samples: _Optional[int] = ..., alike: _Optional[int] = ..., more: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("seq", "offset", "data")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    seq: int
    offset: int
    data: bytes
    def __init__(self, seq: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class EndOfEpoch(_message.Message):
    __slots__ = ("epoch", "steps", "samples", "bad_samples")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BAD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    steps: int
    samples: int
    bad_samples: int
    def __init__(self, epoch: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., bad_samples: _Optional[int] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ("batches", "chunk", "end", "error", "known_steps", "heartbeat", "notices")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_STEPS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    chunk: Chunk
    end: EndOfEpoch
    error: Error
    known_steps: int
    heartbeat: Heartbeat
    notices: _containers.RepeatedCompositeFieldContainer[Notice]
    def __init__(self, batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., end: _Optional[_Union[EndOfEpoch, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., known_steps: _Optional[int] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., notices: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("waiting_for",)
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    waiting_for: str
    def __init__(self, waiting_for: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "message", "object", "hint", "retryable", "stage")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    object: str
    hint: str
    retryable: bool
    stage: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., object: _Optional[str] = ..., hint: _Optional[str] = ..., retryable: _Optional[bool] = ..., stage: _Optional[str] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClassesRequest(_message.Message):
    __slots__ = ("session_id", "field")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    field: str
    def __init__(self, session_id: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class ClassesResponse(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sample(_message.Message):
    __slots__ = ("name", "labels", "value")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.ScalarMap[str, str]
    value: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("state", "version", "daemon_id", "uptime_s", "sessions", "samples", "cache", "lanes", "pid")
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DAEMON_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    state: str
    version: str
    daemon_id: str
    uptime_s: float
    sessions: int
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    cache: CacheState
    lanes: int
    pid: int
    def __init__(self, state: _Optional[str] = ..., version: _Optional[str] = ..., daemon_id: _Optional[str] = ..., uptime_s: _Optional[float] = ..., sessions: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., cache: _Optional[_Union[CacheState, _Mapping]] = ..., lanes: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class CacheState(_message.Message):
    __slots__ = ("directory", "limit_bytes", "free_reserve_bytes", "committed_bytes", "reserved_bytes", "entries", "pins")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    directory: str
    limit_bytes: int
    free_reserve_bytes: int
    committed_bytes: int
    reserved_bytes: int
    entries: int
    pins: int
    def __init__(self, directory: _Optional[str] = ..., limit_bytes: _Optional[int] = ..., free_reserve_bytes: _Optional[int] = ..., committed_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., entries: _Optional[int] = ..., pins: _Optional[int] = ...) -> None: ...

class CacheListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CacheEntry(_message.Message):
    __slots__ = ("url", "etag", "size_bytes", "pins", "form")
    URL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    url: str
    etag: str
    size_bytes: int
    pins: int
    form: str
    def __init__(self, url: _Optional[str] = ..., etag: _Optional[str] = ..., size_bytes: _Optional[int] = ..., pins: _Optional[int] = ..., form: _Optional[str] = ...) -> None: ...

class CacheRemoveRequest(_message.Message):
    __slots__ = ("pattern",)
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    def __init__(self, pattern: _Optional[str] = ...) -> None: ...

class CacheRemoveResponse(_message.Message):
    __slots__ = ("removed", "in_use")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    removed: Amount
    in_use: Amount
    def __init__(self, removed: _Optional[_Union[Amount, _Mapping]] = ..., in_use: _Optional[_Union[Amount, _Mapping]] = ...) -> None: ...

class WarmRequest(_message.Message):
    __slots__ = ("urls", "node_count", "node_rank", "sharding", "fit", "fields")
    URLS_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    urls: _containers.RepeatedScalarFieldContainer[str]
    node_count: int
    node_rank: int
    sharding: str
    fit: bool
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    def __init__(self, urls: _Optional[_Iterable[str]] = ..., node_count: _Optional[int] = ..., node_rank: _Optional[int] = ..., sharding: _Optional[str] = ..., fit: _Optional[bool] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ...) -> None: ...

class Amount(_message.Message):
    __slots__ = ("objects", "bytes")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    objects: int
    bytes: int
    def __init__(self, objects: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class WarmProgress(_message.Message):
    __slots__ = ("total", "present", "warmed", "left_out", "failed", "failures")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    WARMED_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    total: Amount
    present: Amount
    warmed: Amount
    left_out: Amount
    failed: Amount
    failures: _containers.RepeatedCompositeFieldContainer[Error]
    def __init__(self, total: _Optional[_Union[Amount, _Mapping]] = ..., present: _Optional[_Union[Amount, _Mapping]] = ..., warmed: _Optional[_Union[Amount, _Mapping]] = ..., left_out: _Optional[_Union[Amount, _Mapping]] = ..., failed: _Optional[_Union[Amount, _Mapping]] = ..., failures: _Optional[_Iterable[_Union[Error, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionEntry(_message.Message):
    __slots__ = ("id", "owner", "pids", "urls", "slots", "leases", "arena_bytes", "age_s", "silent_s", "times", "times_age_s", "rank", "world_size", "share", "waits_for", "assigned_shards", "assigned_bytes", "inline", "largest_shard_bytes", "object_bytes", "epoch", "step", "steps", "batch_size", "ready", "consumers")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    URLS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    TIMES_AGE_S_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_SHARDS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_SHARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    pids: _containers.RepeatedScalarFieldContainer[int]
    urls: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    leases: int
    arena_bytes: int
    age_s: float
    silent_s: float
    times: TrainerTimes
    times_age_s: float
    rank: int
    world_size: int
    share: str
    waits_for: str
    assigned_shards: int
    assigned_bytes: int
    inline: bool
    largest_shard_bytes: int
    object_bytes: int
    epoch: int
    step: int
    steps: int
    batch_size: int
    ready: int
    consumers: int
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ..., pids: _Optional[_Iterable[int]] = ..., urls: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ..., leases: _Optional[int] = ..., arena_bytes: _Optional[int] = ..., age_s: _Optional[float] = ..., silent_s: _Optional[float] = ..., times: _Optional[_Union[TrainerTimes, _Mapping]] = ..., times_age_s: _Optional[float] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., share: _Optional[str] = ..., waits_for: _Optional[str] = ..., assigned_shards: _Optional[int] = ..., assigned_bytes: _Optional[int] = ..., inline: _Optional[bool] = ..., largest_shard_bytes: _Optional[int] = ..., object_bytes: _Optional[int] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., batch_size: _Optional[int] = ..., ready: _Optional[int] = ..., consumers: _Optional[int] = ...) -> None: ...

class SessionsResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionEntry]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionEntry, _Mapping]]] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ObserveResponse(_message.Message):
    __slots__ = ("stats", "sessions", "log", "bad_samples", "folders")
    STATS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    BAD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FOLDERS_FIELD_NUMBER: _ClassVar[int]
    stats: StatsResponse
    sessions: _containers.RepeatedCompositeFieldContainer[SessionEntry]
    log: _containers.RepeatedCompositeFieldContainer[LogEntry]
    bad_samples: _containers.RepeatedCompositeFieldContainer[BadSample]
    folders: _containers.RepeatedCompositeFieldContainer[CacheFolder]
    def __init__(self, stats: _Optional[_Union[StatsResponse, _Mapping]] = ..., sessions: _Optional[_Iterable[_Union[SessionEntry, _Mapping]]] = ..., log: _Optional[_Iterable[_Union[LogEntry, _Mapping]]] = ..., bad_samples: _Optional[_Iterable[_Union[BadSample, _Mapping]]] = ..., folders: _Optional[_Iterable[_Union[CacheFolder, _Mapping]]] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("age_s", "level", "text", "count")
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    level: str
    text: str
    count: int
    def __init__(self, age_s: _Optional[float] = ..., level: _Optional[str] = ..., text: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class BadSample(_message.Message):
    __slots__ = ("id", "url", "key", "field", "reason", "epoch", "age_s", "outcome")
    ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    id: int
    url: str
    key: str
    field: str
    reason: str
    epoch: int
    age_s: float
    outcome: str
    def __init__(self, id: _Optional[int] = ..., url: _Optional[str] = ..., key: _Optional[str] = ..., field: _Optional[str] = ..., reason: _Optional[str] = ..., epoch: _Optional[int] = ..., age_s: _Optional[float] = ..., outcome: _Optional[str] = ...) -> None: ...

class CacheFolder(_message.Message):
    __slots__ = ("url", "entries", "bytes", "pinned_bytes")
    URL_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    url: str
    entries: int
    bytes: int
    pinned_bytes: int
    def __init__(self, url: _Optional[str] = ..., entries: _Optional[int] = ..., bytes: _Optional[int] = ..., pinned_bytes: _Optional[int] = ...) -> None: ...

class FileInfoRequest(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("key", "size_bytes", "etag")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    key: str
    size_bytes: int
    etag: str
    def __init__(self, key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., etag: _Optional[str] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("url", "recursive")
    URL_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    url: str
    recursive: bool
    def __init__(self, url: _Optional[str] = ..., recursive: _Optional[bool] = ...) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[FileEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("url", "etag", "object_bytes", "offset", "size_bytes")
    URL_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    url: str
    etag: str
    object_bytes: int
    offset: int
    size_bytes: int
    def __init__(self, url: _Optional[str] = ..., etag: _Optional[str] = ..., object_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
