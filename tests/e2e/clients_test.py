"""200 clients at once, random prompts, a third of which cancel at a random moment. Nothing crashes, blocks are
conserved, and every answer that was not cancelled is the one that the same request gets alone, or a clean refusal."""

import concurrent.futures
import os
import pathlib
import random
import time
import unittest

import grpc
import harness as h
from harness import EXACT, SPEED, pb

# With RIDGEFILL_SLOW=1 the same on a real model: for the release build, minutes long.
SMOLLM2 = pathlib.Path(os.environ.get("RIDGEFILL_SMOLLM2",
                                      pathlib.Path.home() / ".cache/ridgefill/models/smollm2-135m-instruct.gguf"))


def make_requests(rng, count, most_tokens):
    return [h.request(rng.choice([3, 30, 65, 128, 200, 400, 900]), rng.choice([EXACT, SPEED]),
                      rng.randint(1, most_tokens), seed=i, logprobs=pb.LogprobOptions(enabled=True))
            for i in range(count)]


def outcome(answer):
    return [(token.id, token.logprob) for token in answer.tokens], answer.text


def one_client(address, request, give_up_after):
    """The answer's outcome, "cancelled", or the error."""
    with grpc.insecure_channel(address) as channel:
        call = h.generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=2 * h.PATIENCE)
        if give_up_after is not None:
            time.sleep(give_up_after)
            call.cancel()
        try:
            return outcome(h.Answer(call))
        except grpc.RpcError as error:
            return "cancelled" if error.code() == grpc.StatusCode.CANCELLED else h.Error(error)


class ManyClients(unittest.TestCase):

    def storm(self, router, clients=200, distinct=40, most_tokens=60, modes=None):
        rng = random.Random(20)
        requests = make_requests(rng, distinct, most_tokens)
        for request in requests:
            request.mode = modes or request.mode
        service = h.stub(router)
        expected = [outcome(h.ask(service, request)) for request in requests]
        plan = [(rng.randrange(distinct), rng.uniform(0, 1.5) if i % 3 == 0 else None) for i in range(clients)]
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            results = list(pool.map(lambda p: one_client(router.address, requests[p[0]], p[1]), plan))
        answered = refused = 0
        for (index, _), result in zip(plan, results):
            if isinstance(result, h.Error):
                self.assertEqual(result.code, grpc.StatusCode.RESOURCE_EXHAUSTED, result)
                self.assertIsNotNone(result.retry)
                refused += 1
            elif result != "cancelled":
                self.assertEqual(result, expected[index])
                answered += 1
        print(f"{answered} answered, {refused} refused, {clients - answered - refused} cancelled", flush=True)
        self.assertGreater(answered, clients // 10)
        self.assertEqual(outcome(h.ask(service, requests[0])), expected[0], "and it goes on")

    def test_three_programs(self):
        maps = h.tiny_maps()
        workers = [h.prefill("--maps", maps), h.decode("--maps", maps, "--max_running", 16)]
        router = h.router(workers[:1], workers[1:], "--max_in_flight", 24, "--max_queued", 100)
        with h.running(router, *workers):
            self.storm(router)
            h.eventually(lambda: h.all_blocks_free(workers[1]), "every block of decode is free")
            h.eventually(lambda: h.describe_prefill(workers[0]).running == 0, "prefill is idle")

    def test_one_process(self):
        address = f"127.0.0.1:{h.free_port()}"
        serve = h.Program("ridgefill", "serve", "--model", h.TINY, "--maps", h.tiny_maps(), "--listen", "127.0.0.1:0",
                          "--metrics_listen", address, "--kv_memory_mb", 32, "--local_max_tokens", 4)
        with h.running(serve):
            self.storm(serve)
            used = lambda role: h.metrics(address)[f'ridgefill_{role}_blocks{{model="llama",state="used"}}']
            h.eventually(lambda: used("decode") + used("prefill") == 0, "every block is free")

    @unittest.skipUnless(os.environ.get("RIDGEFILL_SLOW"), "minutes long; RIDGEFILL_SLOW=1 runs it")
    def test_fifty_on_smollm2(self):
        maps = os.environ.get("RIDGEFILL_SMOLLM2_MAPS", "none")
        workers = [h.prefill("--maps", maps, model=SMOLLM2), h.decode("--maps", maps, "--kv_memory_mb", 1024, model=SMOLLM2)]
        router = h.router(workers[:1], workers[1:], model=SMOLLM2)
        with h.running(router, *workers):
            self.storm(router, clients=50, distinct=15, most_tokens=16, modes=EXACT if maps == "none" else None)
            h.eventually(lambda: h.all_blocks_free(workers[1]), "every block of decode is free")


if __name__ == "__main__":
    h.main()
