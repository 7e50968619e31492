"""Every RPC, message, field and enum value of the .proto files has a comment, and docs/grpc.md lists every RPC."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from tests.docs.pages import ROOT, code, table

PROTOS = ROOT / "protos"
# Field numbers in descriptor.proto, of which SourceCodeInfo's paths are made.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
FIELDS, NESTED, VALUES, METHODS = 2, 3, 2, 2


@pytest.fixture(scope="module")
def proto_files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    out = tmp_path_factory.mktemp("protos") / "all.pb"
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    well_known = Path(str(files("grpc_tools"))) / "_proto"
    arguments = [f"-I{PROTOS}", f"-I{well_known}", "--include_source_info", f"--descriptor_set_out={out}"]
    assert protoc.main(["protoc", *arguments, *sources]) == 0
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def elements(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Path and name of all that needs a comment."""
    for i, message in enumerate(file.message_type):
        yield from message_elements((MESSAGES, i), message.name, message)
    for i, enum in enumerate(file.enum_type):
        yield (ENUMS, i), enum.name
        for j, value in enumerate(enum.value):
            yield (ENUMS, i, VALUES, j), value.name
    for i, service in enumerate(file.service):
        yield (SERVICES, i), service.name
        for j, method in enumerate(service.method):
            yield (SERVICES, i, METHODS, j), f"{service.name}.{method.name}"


def message_elements(
    path: tuple[int, ...], name: str, message: DescriptorProto
) -> Iterator[tuple[tuple[int, ...], str]]:
    yield path, name
    for i, field in enumerate(message.field):
        yield (*path, FIELDS, i), f"{name}.{field.name}"
    for i, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from message_elements((*path, NESTED, i), f"{name}.{nested.name}", nested)


def test_everything_has_a_comment(proto_files: list[FileDescriptorProto]) -> None:
    missing = []
    for file in proto_files:
        comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}
        missing += [name for path, name in elements(file) if not comments.get(path)]
    assert missing == []


def test_every_rpc_is_in_the_docs(proto_files: list[FileDescriptorProto]) -> None:
    rpcs = {f"{service.name}.{rpc.name}" for file in proto_files for service in file.service for rpc in service.method}
    assert {code(row["RPC"]) for row in table("grpc.md", "The gRPC services")} == rpcs
