"""A client written from the protos alone, in another language than the server's."""

import time
import unittest

import grpc
import harness as h
from harness import EXACT, QUALITY, SPEED, ask, error_of, pb
from grpc import StatusCode


def setUpModule():
    global prefill, decode, router, api
    prefill, decode = h.prefill("--maps", "none"), h.slow_decode("--maps", "none")
    router = h.router([prefill], [decode])
    api = h.stub(router)


def tearDownModule():
    for program in (router, decode, prefill):
        program.stop()


def change(**fields):
    out = h.request(50)
    out.MergeFrom(pb.GenerateRequest(**fields))
    return out


def tokens(*ids):
    return h.request(list(ids))


# What is wrong, the request, the documented code, reason and field.
BAD_REQUESTS = [
    ("no prompt", pb.GenerateRequest(), StatusCode.INVALID_ARGUMENT, "PROMPT_MISSING", "prompt"),
    ("empty text", pb.GenerateRequest(text=b""), StatusCode.INVALID_ARGUMENT, "PROMPT_EMPTY", "text"),
    ("empty chat", pb.GenerateRequest(chat=pb.ChatPrompt()), StatusCode.INVALID_ARGUMENT, "PROMPT_EMPTY",
     "chat.messages"),
    ("unknown role", pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="king", content=b"x")])),
     StatusCode.INVALID_ARGUMENT, "CHAT_ROLE_UNSUPPORTED", "chat.messages"),
    ("token out of the vocabulary", tokens(5, 100000), StatusCode.INVALID_ARGUMENT, "TOKEN_ID_RANGE", "tokens.ids[1]"),
    ("over the context", h.request(2000, max_tokens=100), StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH",
     "stop.max_tokens"),
    ("no tokens wanted", change(stop=pb.StopOptions(max_tokens=0)), StatusCode.INVALID_ARGUMENT, "MAX_TOKENS_RANGE",
     "stop.max_tokens"),
    ("temperature below 0", change(sampling=pb.SamplingOptions(temperature=-1)), StatusCode.INVALID_ARGUMENT, None,
     "sampling.temperature"),
    ("top_p above 1", change(sampling=pb.SamplingOptions(top_p=2)), StatusCode.INVALID_ARGUMENT, None,
     "sampling.top_p"),
    ("too many logprobs", change(logprobs=pb.LogprobOptions(top=21)), StatusCode.INVALID_ARGUMENT, "LOGPROBS_RANGE",
     "logprobs.top"),
    ("empty stop string", change(stop=pb.StopOptions(stop_strings=[b""])), StatusCode.INVALID_ARGUMENT, "STOP_STRINGS",
     "stop.stop_strings[0]"),
    ("text that is no UTF-8", pb.GenerateRequest(text=b"caf\xe9"), StatusCode.INVALID_ARGUMENT, "INVALID_UTF8", "text"),
    ("content that is no UTF-8",
     pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=b"\xff")])),
     StatusCode.INVALID_ARGUMENT, "INVALID_UTF8", "chat.messages"),
    ("stop string that is no UTF-8", change(stop=pb.StopOptions(stop_strings=[b"ok", b"\xc3"])),
     StatusCode.INVALID_ARGUMENT, "INVALID_UTF8", "stop.stop_strings"),
    ("another model", change(model="gpt-9"), StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", None),
    ("SPEED without maps", h.request(500, SPEED), StatusCode.FAILED_PRECONDITION, "NO_MAPS", None),
    ("QUALITY without maps", h.request(500, QUALITY), StatusCode.FAILED_PRECONDITION, "NO_MAPS", None),
    ("a share above the operator's limit", change(mode=QUALITY, selection=pb.SelectionOptions(share=0.3)),
     StatusCode.INVALID_ARGUMENT, "SHARE_RANGE", "selection.share"),
    ("a selection in another mode", change(mode=SPEED, selection=pb.SelectionOptions(share=0.1)),
     StatusCode.INVALID_ARGUMENT, "SELECTION_QUALITY_ONLY", "selection"),
    ("a split in EXACT", change(mode=EXACT, split=2), StatusCode.INVALID_ARGUMENT, "SPLIT_FILLED_ONLY", "split"),
    ("a split that is none", change(mode=SPEED, split=0), StatusCode.INVALID_ARGUMENT, "SPLIT_RANGE", "split"),
    ("an unknown selector", change(mode=QUALITY, selection=pb.SelectionOptions(selector=9)),
     StatusCode.INVALID_ARGUMENT, "SELECTOR_UNKNOWN", "selection.selector"),
]


class GrpcioClient(unittest.TestCase):

    def test_streams_an_answer(self):
        answer = ask(api, 100, EXACT, 200)
        self.assertEqual(len(answer.tokens), 200)
        self.assertGreater(answer.messages, 10, "it came in pieces")
        self.assertEqual(answer.started.fill.exact, 100)
        self.assertEqual(answer.finished.usage.generated_tokens, 200)

    def test_bad_requests_get_the_documented_codes(self):
        for what, bad, code, reason, field in BAD_REQUESTS:
            with self.subTest(what):
                error = error_of(lambda: ask(api, bad))
                self.assertEqual(error.code, code, error)
                self.assertEqual(error.domain, "ridgefill.dev")
                self.assertEqual(error.reason, reason or error.reason)
                self.assertRegex(error.reason, "^[A-Z][A-Z0-9_]+$")
                self.assertEqual(error.fields, [field] if field else [], error)
        self.assertEqual(ask(api, 50).finished.usage.generated_tokens, 8, "the server goes on")

    def test_tokenizer_calls_refuse_bad_input_too(self):
        error = error_of(lambda: api.Detokenize(pb.DetokenizeRequest(ids=[1, -5])))
        self.assertEqual((error.code, error.fields), (StatusCode.INVALID_ARGUMENT, ["ids[1]"]))
        error = error_of(lambda: api.Tokenize(pb.TokenizeRequest()))
        self.assertEqual((error.code, error.fields), (StatusCode.INVALID_ARGUMENT, ["input"]))
        error = error_of(lambda: api.Tokenize(pb.TokenizeRequest(model="gpt-9", text=b"x")))
        self.assertEqual(error.code, StatusCode.NOT_FOUND)

    def test_bytes_that_are_no_utf8_are_named(self):
        error = error_of(lambda: ask(api, pb.GenerateRequest(text=b"caf\xe9 au lait")))
        self.assertIn("byte 3", error.message)
        for bad, field in ((pb.TokenizeRequest(text=b"\xf0\x9f"), "text"),
                           (pb.TokenizeRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=b"\x80")])),
                            "chat.messages")):
            error = error_of(lambda: api.Tokenize(bad))
            self.assertEqual((error.code, error.reason, error.fields),
                             (StatusCode.INVALID_ARGUMENT, "INVALID_UTF8", [field]))

    def test_cancel_frees_the_blocks(self):
        call = api.Generate(h.request(300, EXACT, 1700), timeout=h.PATIENCE)
        for message in call:
            if message.HasField("delta"):
                break
        self.assertGreaterEqual(h.describe_decode(decode).running, 1)
        call.cancel()
        start = time.monotonic()
        h.eventually(lambda: h.all_blocks_free(decode), "blocks free after a cancel")
        self.assertLess(time.monotonic() - start, 5)
        line = h.eventually(lambda: [l for l in router.log("request") if l["status"] == "CANCELLED"], "it is logged")[0]
        self.assertLess(line["generated_tokens"], 1700)

    def test_deadline_frees_the_blocks(self):
        error = error_of(lambda: ask(api, 300, EXACT, 1700, timeout=0.05))
        self.assertEqual(error.code, StatusCode.DEADLINE_EXCEEDED)
        h.eventually(lambda: h.all_blocks_free(decode), "blocks free after a deadline")


if __name__ == "__main__":
    h.main()
