"""What happens when programs die, stall, disagree, are full, or are told to stop."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import grpc
import harness as h
from grpc import StatusCode
from harness import EXACT, SPEED, ask, error_of, pb

TINY_OTHER = h.ROOT / "tests/data/golden/tiny/llama-untied"
SMOLLM2 = pathlib.Path(os.environ.get("RIDGEFILL_SMOLLM2",
                                      pathlib.Path.home() / ".cache/ridgefill/models/smollm2-135m-instruct.gguf"))


def freeze(program):
    program.process.send_signal(signal.SIGSTOP)


def read_first_token(call):
    """Ids of the first delta; the call goes on."""
    for message in call:
        if message.HasField("delta"):
            return [token.id for token in message.delta.tokens]
    raise AssertionError("the stream ended without a token")


class Killed(unittest.TestCase):

    def test_decode_killed_mid_stream_ends_with_a_status_and_no_invented_text(self):
        prefill, decode = h.prefill(), h.slow_decode()
        router = h.router([prefill], [decode])
        with h.running(router, prefill):
            request = h.request(100, EXACT, 1900)
            expected = ask(h.stub(router), request).ids
            call = h.stub(router).Generate(request, timeout=h.PATIENCE)
            got = read_first_token(call)
            decode.kill()
            with self.assertRaises(grpc.RpcError) as raised:
                for message in call:
                    self.assertFalse(message.HasField("finished"))
                    got += [token.id for token in message.delta.tokens]
            self.assertEqual(h.Error(raised.exception).code, StatusCode.UNAVAILABLE)
            self.assertEqual(got, expected[:len(got)])
            error = error_of(lambda: ask(h.stub(router), 100))
            self.assertEqual((error.code, error.domain), (StatusCode.UNAVAILABLE, "ridgefill.dev"))
            h.eventually(lambda: h.describe_prefill(prefill).running == 0, "prefill is idle")

    def test_prefill_killed_before_the_first_token_is_retried_on_another(self):
        self.retried_when_killed("prefill", lambda: [h.prefill(), h.prefill()], lambda: [h.decode()])

    def test_decode_killed_before_the_first_token_is_retried_on_another(self):
        self.retried_when_killed("decode", lambda: [h.prefill()], lambda: [h.decode(), h.decode()])

    def retried_when_killed(self, role, make_prefill, make_decode):
        prefill, decode = make_prefill(), make_decode()
        pair = prefill if role == "prefill" else decode
        router = h.router(prefill, decode, "--config", self.slow_checks())
        with h.running(router, *(set(prefill + decode) - {pair[0]})):
            expected = ask(h.stub(router), 300).ids  # the turn is now pair[1]'s, then pair[0]'s
            ask(h.stub(router), 300)
            freeze(pair[0])
            result = {}
            client = threading.Thread(target=lambda: result.update(answer=ask(h.stub(router), 300)))
            client.start()
            time.sleep(0.5)  # the request lies at the frozen worker
            pair[0].kill()
            client.join(h.PATIENCE)
            self.assertEqual(result["answer"].ids, expected)
            line = router.wait_log("request", request=result["answer"].started.request_id)
            self.assertEqual(line["retries"], 1)
            self.assertEqual(line[f"{role}_worker"], pair[1].address)

    def slow_checks(self):
        # The router must learn of the death from the call itself, not from a health check.
        path = h.SCRATCH / "slow_checks.json"
        path.write_text('{"worker_check_ms": 60000}')
        return path

    def test_nobody_left_is_unavailable_after_at_most_two_retries(self):
        prefill, decode = h.prefill(), h.decode()
        router = h.router([prefill], [decode], "--config", self.slow_checks())
        with h.running(router, decode):
            prefill.kill()
            prefill.process.wait()
            error = error_of(lambda: ask(h.stub(router), 300))
            self.assertEqual(error.code, StatusCode.UNAVAILABLE)
            self.assertEqual(router.wait_log("request", status="UNAVAILABLE")["retries"], 2)
            h.eventually(lambda: h.all_blocks_free(decode), "blocks free")

    def test_client_that_vanishes_frees_the_blocks(self):
        prefill, decode = h.prefill(), h.slow_decode()
        router = h.router([prefill], [decode])
        with h.running(router, prefill, decode):
            code = ("import sys; sys.path.insert(0, 'tests/e2e'); import harness as h, time\n"
                    f"call = h.stub('{router.address}').Generate(h.request(100, h.EXACT, 1900))\n"
                    "next(call); print('started', flush=True); time.sleep(60)")
            client = subprocess.Popen([sys.executable, "-c", code], cwd=h.ROOT, stdout=subprocess.PIPE, text=True)
            self.assertEqual(client.stdout.readline(), "started\n")
            client.kill()
            client.communicate()
            h.eventually(lambda: h.all_blocks_free(decode), "blocks free")


class Placed(unittest.TestCase):

    def test_draining_worker_gets_nothing_and_loses_no_token(self):
        prefill = h.prefill()
        first, second = h.slow_decode(), h.slow_decode()
        router = h.router([prefill], [first, second])
        with h.running(router, prefill, second):
            service = h.stub(router)
            request = h.request(100, EXACT, 1900)
            call = service.Generate(request, timeout=h.PATIENCE)
            ids = read_first_token(call)
            busy = first if h.describe_decode(first).running else second
            self.assertIs(busy, first, "equals take turns, from the first one on")
            first.terminate()
            first.wait_log("draining")
            h.eventually(lambda: any(l["worker"] == first.address for l in router.log("worker_not_serving")),
                         "the router sees it")
            served = [ask(service, 50).started.request_id for _ in range(6)]
            for message in call:
                ids += [token.id for token in message.delta.tokens]
            self.assertEqual(len(ids), 1900)
            self.assertEqual(first.wait(), 0)
            workers = {router.wait_log("request", request=i)["decode_worker"] for i in served}
            self.assertEqual(workers, {second.address})
            self.assertEqual(ids, ask(service, request).ids)

    def test_recovered_worker_is_used_again(self):
        port = h.free_port()
        address = f"127.0.0.1:{port}"
        decode = h.decode()
        router = h.router([address], [decode])
        with h.running(router, decode):
            error = error_of(lambda: ask(h.stub(router), 100))
            self.assertEqual((error.code, error.reason), (StatusCode.UNAVAILABLE, "NO_WORKER"))
            self.assertEqual(ask(h.stub(router), 3).started.fill.reason, "LOCAL", "needs no prefill worker")
            prefill = h.prefill("--listen", address)
            with h.running(prefill):
                router.wait_log("worker_serving", worker=address)
                self.assertEqual(ask(h.stub(router), 100).started.fill.reason, "REQUESTED")

    def test_peers_that_disagree_are_refused_by_name(self):
        maps = h.tiny_maps()
        other_maps = h.SCRATCH / "other_maps"
        subprocess.run([str(h.BIN / "ridgefill"), "fit", "--model", str(h.TINY), "--corpus", str(h.CORPUS), "--split",
                        "2", "--rows", "2048", "--document_tokens", "1024", "--held_out", "1", "--out", str(other_maps),
                        "--tail", "32", "--tail_minimum", "16", "--min_bulk", "32"], check=True, capture_output=True)
        prefill, decode = h.prefill("--maps", maps), h.decode("--maps", other_maps)
        router = h.router([prefill], [decode])
        with h.running(router, prefill, decode):
            error = error_of(lambda: ask(h.stub(router), 300, SPEED))
            self.assertEqual((error.code, error.reason), (StatusCode.FAILED_PRECONDITION, "PEER_MAPS"))
            self.assertEqual(len(ask(h.stub(router), 300, EXACT).ids), 8, "EXACT needs no maps")
        prefill, decode = h.prefill(model=TINY_OTHER), h.decode()
        router = h.router([prefill], [decode])
        with h.running(router, prefill, decode):
            error = error_of(lambda: ask(h.stub(router), 300))
            self.assertEqual((error.code, error.reason), (StatusCode.UNAVAILABLE, "NO_WORKER"))


    def test_filled_modes_go_where_the_maps_are(self):
        maps = h.tiny_maps()
        bare, mapped, decode = h.prefill("--maps", "none"), h.prefill("--maps", maps), h.decode("--maps", maps)
        router = h.router([bare, mapped], [decode], "--auto_min_tokens", 200)
        with h.running(router, bare, mapped, decode):
            service = h.stub(router)
            model, = service.ListModels(pb.ListModelsRequest()).models
            self.assertIn(SPEED, model.modes)
            for mode in (SPEED, h.AUTO) * 3:
                self.assertEqual(ask(service, 300, mode, 2).started.fill.mode, SPEED)
            used, deadline = set(), time.monotonic() + h.PATIENCE
            while used != {bare.address, mapped.address}:  # a report of load is up to a second old
                self.assertLess(time.monotonic(), deadline, f"EXACT goes by load alone; it went to {used} only")
                started = ask(service, 300, EXACT, 2).started
                used.add(router.wait_log("request", request=started.request_id)["prefill_worker"])
            mapped.stop()
            router.wait_log("worker_not_serving", worker=mapped.address)
            error = error_of(lambda: ask(service, 300, SPEED))
            self.assertEqual((error.code, error.reason), (StatusCode.FAILED_PRECONDITION, "NO_MAPS"))

    def test_prefill_is_free_again_once_the_answer_has_begun(self):
        address = f"127.0.0.1:{h.free_port()}"
        prefill, decode = h.prefill(), h.slow_decode()
        router = h.router([prefill], [decode], "--metrics_listen", address)
        in_flight = lambda role, worker: h.metrics(address)[
            f'ridgefill_router_worker_in_flight_requests{{role="{role}",worker="{worker.address}"}}']
        with h.running(router, prefill, decode):
            call = h.stub(router).Generate(h.request(100, EXACT, 1900), timeout=h.PATIENCE)
            read_first_token(call)
            self.assertEqual((in_flight("prefill", prefill), in_flight("decode", decode)), (0, 1))
            call.cancel()

    def test_workers_of_another_model_get_nothing(self):
        # A fine-tuning of the same model: only the weights tell.
        tuned = h.SCRATCH / "tuned"
        shutil.copytree(h.TINY, tuned)
        weights = bytearray((tuned / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (tuned / "model.safetensors").write_bytes(weights)
        own, other_decode, other_prefill = h.decode(), h.decode(model=tuned), h.prefill(model=tuned)
        router = h.router([other_prefill], [other_decode, own])
        with h.running(router, own, other_decode, other_prefill):
            for other in (other_decode, other_prefill):
                line = router.wait_log("worker_not_serving", worker=other.address)
                self.assertIn("weights digest", line["problem"])
            error = error_of(lambda: ask(h.stub(router), 300))
            self.assertEqual((error.code, error.reason), (StatusCode.UNAVAILABLE, "NO_WORKER"))
            for _ in range(4):
                request_id = ask(h.stub(router), 3).started.request_id
                self.assertEqual(router.wait_log("request", request=request_id)["decode_worker"], own.address)
            self.assertEqual(len(router.log("worker_not_serving")), 2, "said once")


class Full(unittest.TestCase):

    def test_full_router_refuses_at_once_and_says_when_to_try_again(self):
        address = f"127.0.0.1:{h.free_port()}"
        prefill, decode = h.prefill(), h.slow_decode()
        router = h.router([prefill], [decode], "--max_in_flight", 1, "--max_queued", 1,
                          "--metrics_listen", address)
        with h.running(router, prefill, decode):
            service = h.stub(router)
            running = service.Generate(h.request(100, EXACT, 1900), timeout=h.PATIENCE)
            read_first_token(running)
            waiting = service.Generate(h.request(100, EXACT, 4), timeout=h.PATIENCE)
            h.eventually(lambda: h.metrics(address)['ridgefill_router_queued_requests{model="llama"}'] == 1, "one waits")
            error = error_of(lambda: ask(service, 100))
            self.assertEqual((error.code, error.reason), (StatusCode.RESOURCE_EXHAUSTED, "ROUTER_QUEUE_FULL"))
            self.assertGreater(error.retry, 0)
            self.assertEqual(h.metrics(address)['ridgefill_router_queued_requests{model="llama"}'], 1,
                             "refused while the other still waits")
            running.cancel()
            self.assertEqual(len(h.Answer(waiting).ids), 4)

    def test_full_worker_is_passed_on_as_exhausted(self):
        config = h.SCRATCH / "short_queue.json"
        config.write_text('{"max_queued": 1}')
        # Room for one request of the whole context.
        decode = h.decode("--kv_memory_mb", 1, "--config", config)
        router = h.router([], [decode])
        with h.running(router, decode):
            service = h.stub(router)
            calls = [service.Generate(h.request(1500, EXACT, 500), timeout=h.PATIENCE) for _ in range(6)]
            outcomes = []
            for call in calls:
                try:
                    outcomes.append(len(h.Answer(call).ids))
                except grpc.RpcError as error:
                    outcomes.append(h.Error(error).reason)
            self.assertIn("DECODE_QUEUE_FULL", outcomes)
            self.assertIn(500, outcomes)


class Stopped(unittest.TestCase):

    def test_router_drains_on_sigterm(self):
        prefill, decode = h.prefill(), h.slow_decode()
        router = h.router([prefill], [decode])
        with h.running(prefill, decode):
            channel = grpc.insecure_channel(router.address)
            service = h.generation_pb2_grpc.GenerationServiceStub(channel)
            health = h.health_pb2_grpc.HealthStub(channel)
            states = health.Watch(h.health_pb2.HealthCheckRequest(service="ridgefill.v1.GenerationService"))
            serving = h.health_pb2.HealthCheckResponse.SERVING
            self.assertEqual(next(states).status, serving)
            request = h.request(100, EXACT, 1900)
            call = service.Generate(request, timeout=h.PATIENCE)
            ids = read_first_token(call)
            router.terminate()
            self.assertNotEqual(next(states).status, serving)
            error = None
            deadline = time.monotonic() + h.PATIENCE
            while error is None:  # health turns just before the first request is refused
                self.assertLess(time.monotonic(), deadline, "no request is refused")
                try:
                    ask(service, 100)
                except grpc.RpcError as refused:
                    error = h.Error(refused)
            self.assertEqual((error.code, error.reason), (StatusCode.UNAVAILABLE, "DRAINING"))
            for message in call:
                ids += [token.id for token in message.delta.tokens]
            self.assertEqual(len(ids), 1900, "no token lost")
            # The Watch stays open: it must not hold the router up for the 30 s of its drain.
            start = time.monotonic()
            self.assertEqual(router.wait(), 0)
            self.assertLess(time.monotonic() - start, 10)
            states.cancel()

    @unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is missing: the tiny models load too fast to stop that")
    def test_sigterm_while_loading_ends_at_once(self):
        program = subprocess.Popen([str(h.BIN / "ridgefill-decode"), "--model", str(SMOLLM2), "--maps", "none", "--listen",
                                    "127.0.0.1:0"], stderr=subprocess.DEVNULL)
        mapped = pathlib.Path(f"/proc/{program.pid}/maps")
        h.eventually(lambda: SMOLLM2.resolve().name in mapped.read_text(), "it reads the model")
        program.terminate()
        self.assertEqual(program.wait(timeout=h.PATIENCE), -signal.SIGTERM)

    def test_a_request_longer_than_the_drain_is_cut_with_a_status(self):
        prefill, decode = h.prefill(), h.slow_decode()
        router = h.router([prefill], [decode], "--drain_seconds", 1)
        with h.running(prefill):
            call = h.stub(router).Generate(h.request(100, EXACT, 1900), timeout=h.PATIENCE)
            read_first_token(call)
            freeze(decode)
            router.terminate()
            self.assertEqual(router.wait(), 0)
            with self.assertRaises(grpc.RpcError):
                list(call)
            decode.kill()


class Start(unittest.TestCase):

    def refused(self, name, *arguments):
        """What the program says when it will not start."""
        program = h.Program(name, *arguments, ready=False)
        self.assertNotEqual(program.wait(), 0)
        h.eventually(lambda: program.lines and program.lines[-1]["event"] == "eof", "all of its output")
        return program.text()

    def test_says_what_is_wrong(self):
        taken = h.decode()
        with h.running(taken):
            self.assertIn(f"cannot listen on {taken.address}",
                          self.refused("ridgefill-decode", "--model", h.TINY, "--listen", taken.address))
        self.assertIn("no model \"nothing\"", self.refused("ridgefill-prefill", "--model", "nothing"))
        self.assertIn("source.model", self.refused("ridgefill-prefill"))
        self.assertIn("decode_workers", self.refused("ridgefill-router", "--model", h.TINY))
        arithmetic = self.refused("ridgefill-decode", "--model", h.TINY, "--kv_memory_mb", 9000000)
        self.assertRegex(arithmetic, r"does not fit: weights \d+ MB \+ KV cache 9000000 MB = \d+ MB, but \d+ MB are")
        self.assertIn("holds 32 blocks of 64 tokens, but one request of context_tokens 4096 needs 64",
                      self.refused("ridgefill-decode", "--model", h.TINY, "--kv_memory_mb", 1,
                                   "--context_tokens", 4096))
        self.assertIn("holds 32 blocks of 64 tokens, but one request of context_tokens 4096 needs 64",
                      self.refused("ridgefill-prefill", "--model", h.TINY, "--kv_memory_mb", 1,
                                   "--context_tokens", 4096))
        bad = h.SCRATCH / "bad.json"
        bad.write_text('{"listen": {"adress": "x"}}')
        self.assertIn("adress", self.refused("ridgefill-decode", "--config", bad))
        self.assertIn("chunk_tokens", self.refused("ridgefill-prefill", "--model", h.TINY, "--chunk_tokens", 100))

    @unittest.skipUnless(SMOLLM2.exists(), f"{SMOLLM2} is missing: the tiny models' blocks all fit into 1 MB")
    def test_kv_memory_below_one_block_is_not_the_default(self):
        self.assertRegex(self.refused("ridgefill-prefill", "--model", SMOLLM2, "--maps", "none", "--kv_memory_mb", 1),
                         r"kv_memory_mb 1 holds 0 blocks of 64 tokens, but one request .* needs \d+ \(\d+ MB\)")

    def test_damaged_model_and_maps_are_refused_by_name(self):
        model = h.SCRATCH / "damaged.gguf"
        whole = (h.ROOT / "tests/data/golden/tiny/llama.gguf").read_bytes()
        model.write_bytes(whole[:len(whole) // 2])
        self.assertIn("damaged.gguf", self.refused("ridgefill-decode", "--model", model))
        maps = h.SCRATCH / "damaged_maps"
        shutil.copytree(h.tiny_maps(), maps)
        weights = next(path for path in maps.iterdir() if path.suffix == ".safetensors")
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        self.assertIn(weights.name, self.refused("ridgefill-prefill", "--model", h.TINY, "--maps", maps))
        self.assertIn("fitted for another architecture: llama, this model has qwen2",
                      self.refused("ridgefill-prefill", "--model", h.ROOT / "tests/data/golden/tiny/qwen2", "--maps",
                                   h.tiny_maps()))
        self.assertIn("fitted for another shape: 4 layers, 64 wide",
                      self.refused("ridgefill-prefill", "--model", TINY_OTHER, "--maps", h.tiny_maps()))


if __name__ == "__main__":
    h.main()
