"""`python -m services.engine` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import grpc

from services.pb.postroad.v1 import engine_pb2, engine_pb2_grpc
from tests.engine.running_engine import request
from tests.support.polling import WAIT_SECONDS


def start(*flags):
    command = [sys.executable, "-m", "services.engine", "--port", "0", "--metrics-port", "0", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def events(process):
    return (json.loads(line) for line in process.stdout)


def wait_for(lines, event):
    return next(line for line in lines if line["event"] == event)


def test_serves_and_stops_on_sigterm_with_status_0():
    with start("--executor", "scripted", "--step-ms", "0") as process:
        try:
            lines = events(process)
            port = wait_for(lines, "listening")["port"]
            wait_for(lines, "ready")
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                responses = list(engine_pb2_grpc.EngineStub(channel).Generate(request(max_tokens=3)))
            assert sum(len(response.token_ids) for response in responses) == 3
            process.send_signal(signal.SIGTERM)
            wait_for(lines, "stopped")
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()


def test_a_model_that_is_not_there_ends_it_with_status_1_and_one_line_that_says_so():
    with start("--model", "nowhere.gguf") as process:
        try:
            ended = wait_for(events(process), "the engine ended")
            assert ended["error"] == "no such file: nowhere.gguf"
            assert "exception" not in ended
            assert process.wait(WAIT_SECONDS) == 1
        finally:
            process.kill()


def test_sigterm_while_the_weights_are_loaded_is_obeyed():
    with start("--num-pages", "64") as process:
        try:
            lines = events(process)
            port = wait_for(lines, "listening")["port"]
            wait_for(lines, "model files read")
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                model = engine_pb2_grpc.EngineStub(channel).GetModel(engine_pb2.GetModelRequest())
            assert model.vocab_size == 49152
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()


def test_the_scripted_executor_needs_no_torch():
    code = (
        "import sys, services.engine.__main__;"
        "from services.engine.settings import EngineSettings; from services.engine.startup import load_engine;"
        "load_engine(EngineSettings(executor='scripted'), lambda model: None, None);"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
