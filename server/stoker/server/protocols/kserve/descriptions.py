"""Metadata, statistics and the index as protocol messages; the HTTP front prints the same messages as JSON."""

from collections.abc import Iterable

from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.server.core.state import Duration, IndexEntry, ModelDescription, ModelStatistics, ResponseStatistics
from stoker.server.pb import grpc_service_pb2 as pb


def metadata_to_message(description: ModelDescription) -> pb.ModelMetadataResponse:
    """The model's inputs and outputs with a leading -1 where it is batched, and all its READY versions."""
    config = description.config
    lead = (VARIABLE,) if config.signature.is_batched else ()
    return pb.ModelMetadataResponse(
        name=config.name,
        versions=[str(version) for version in description.ready_versions],
        platform=config.platform,
        inputs=[_tensor(spec, lead) for spec in config.signature.inputs],
        outputs=[_tensor(spec, lead) for spec in config.signature.outputs],
    )


def statistics_to_message(statistics: Iterable[ModelStatistics]) -> pb.ModelStatisticsResponse:
    """All versions' statistics. Cache counts are there and 0, because clients read them whatever the server has."""
    return pb.ModelStatisticsResponse(model_stats=[_statistics(each) for each in statistics])


def index_to_message(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    """The index; version and state are empty where a model was never loaded."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name,
                version="" if entry.version is None else str(entry.version),
                state="" if entry.state is None else entry.state.triton_name,
                reason=entry.reason,
            )
            for entry in entries
        ]
    )


def _tensor(spec: TensorSpec, lead: tuple[int, ...]) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype.value, shape=(*lead, *spec.dims))


def _statistics(each: ModelStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=each.name,
        version=str(each.version),
        last_inference=each.last_inference_ms,
        inference_count=each.inference_count,
        execution_count=each.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(each.success),
            fail=_duration(each.fail),
            queue=_duration(each.queue),
            compute_input=_duration(each.compute_input),
            compute_infer=_duration(each.compute_infer),
            compute_output=_duration(each.compute_output),
            cache_hit=pb.StatisticDuration(),
            cache_miss=pb.StatisticDuration(),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=batch.batch_size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for batch in each.batches
        ],
        response_stats={str(position): _response(response) for position, response in enumerate(each.responses)},
    )


def _response(each: ResponseStatistics) -> pb.InferResponseStatistics:
    return pb.InferResponseStatistics(
        compute_infer=_duration(each.compute_infer),
        compute_output=_duration(each.compute_output),
        success=_duration(each.success),
        fail=_duration(each.fail),
        empty_response=_duration(each.empty_response),
        cancel=_duration(each.cancel),
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
