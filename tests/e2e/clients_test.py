"""200 clients at once, random prompts, a third of which cancel at a random moment. Nothing crashes, blocks are
conserved, and every answer that was not cancelled is the one that the same request gets alone, or a clean refusal."""

import concurrent.futures
import random
import time
import unittest

import grpc
import harness as h
from harness import EXACT, SPEED, pb

CLIENTS = 200
DISTINCT = 40


def make_requests(rng):
    out = []
    for i in range(DISTINCT):
        out.append(h.request(rng.choice([3, 30, 65, 128, 200, 400, 900]), rng.choice([EXACT, SPEED]),
                             rng.randint(1, 60), seed=i, logprobs=pb.LogprobOptions(enabled=True)))
    return out


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

    def test_two_hundred_at_once(self):
        rng = random.Random(20)
        maps = h.tiny_maps()
        workers = [h.prefill("--maps", maps), h.decode("--maps", maps, "--max_running", 16)]
        router = h.router(workers[:1], workers[1:], "--max_in_flight", 24, "--max_queued", 100)
        with h.running(router, *workers):
            requests = make_requests(rng)
            service = h.stub(router)
            expected = [outcome(h.ask(service, request)) for request in requests]
            plan = [(rng.randrange(DISTINCT), rng.uniform(0, 1.5) if i % 3 == 0 else None) for i in range(CLIENTS)]
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
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
            print(f"{answered} answered, {refused} refused, {CLIENTS - answered - refused} cancelled")
            self.assertGreater(answered, 20)
            h.eventually(lambda: h.all_blocks_free(workers[1]), "every block of decode is free")
            h.eventually(lambda: h.describe_prefill(workers[0]).running == 0, "prefill is idle")
            self.assertEqual(outcome(h.ask(service, requests[0])), expected[0], "and it goes on")


if __name__ == "__main__":
    h.main()
