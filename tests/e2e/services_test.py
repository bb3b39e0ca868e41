"""The three programs, and `ridgefill serve`, as a client sees them."""

import json
import subprocess
import unittest

import grpc
import harness as h
from harness import AUTO, EXACT, QUALITY, SPEED, ask, pb

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def setUpModule():
    global maps, prefill, decode, router, serve, api, embedded
    maps = h.tiny_maps()
    monitored = lambda: ("--metrics_listen", f"127.0.0.1:{h.free_port()}")
    prefill = h.prefill("--maps", maps, *monitored())
    decode = h.decode("--maps", maps, *monitored())
    router = h.router([prefill], [decode], "--auto_min_tokens", 200, *monitored())
    serve = h.Program("ridgefill", "serve", "--model", h.TINY, "--maps", maps, "--listen", "127.0.0.1:0",
                      "--local_max_tokens", 4, "--kv_memory_mb", 32, "--threads", 1)
    api, embedded = h.stub(router), h.stub(serve)


def tearDownModule():
    for program in (router, serve, decode, prefill):
        program.stop()


def metrics_address(program):
    arguments = program.process.args
    return arguments[arguments.index("--metrics_listen") + 1]


def logprobs(answer):
    return [(token.id, token.logprob) for token in answer.tokens]


SELECTION = {"selection": pb.SelectionOptions(share=0.25)}  # of the few hundred rows here: some windows
WITH_LOGPROBS = {"logprobs": pb.LogprobOptions(enabled=True)}


class Answers(unittest.TestCase):

    def test_transports_agree_bit_for_bit(self):
        for mode in (EXACT, SPEED):
            for length in (65, 128, 300, 700):
                over_grpc = ask(api, length, mode, 12, **WITH_LOGPROBS)
                local = ask(embedded, length, mode, 12, **WITH_LOGPROBS)
                self.assertEqual(logprobs(over_grpc), logprobs(local))
                self.assertEqual(over_grpc.text, local.text)

    def test_quality_reports_the_rows_that_it_selected_and_transports_agree(self):
        for length in (300, 700):
            over_grpc = ask(api, length, QUALITY, 12, **WITH_LOGPROBS, **SELECTION)
            local = ask(embedded, length, QUALITY, 12, **WITH_LOGPROBS, **SELECTION)
            self.assertEqual(logprobs(over_grpc), logprobs(local))
            self.assertEqual(over_grpc.started.fill, local.started.fill)
            fill = over_grpc.started.fill
            self.assertEqual((fill.mode, fill.split, fill.tail, fill.reason), (QUALITY, 2, 32, "REQUESTED"))
            self.assertEqual(fill.filled + fill.exact, length)
            self.assertEqual(fill.exact, 32 + fill.outliers + fill.selected)
            self.assertGreaterEqual(fill.selected, round(0.05 * (length - 32)) + 24, "single rows and a window")
            self.assertLessEqual(fill.selected, 0.25 * (length - 32) + 0.5)
            self.assertNotEqual(logprobs(over_grpc), logprobs(ask(api, length, SPEED, 12, **WITH_LOGPROBS)))
        none = ask(api, 300, QUALITY, 12, **WITH_LOGPROBS, selection=pb.SelectionOptions(selector=pb.SELECTOR_NONE))
        self.assertEqual(none.started.fill.selected, 0)
        self.assertEqual(logprobs(none), logprobs(ask(api, 300, SPEED, 12, **WITH_LOGPROBS)))
        self.assertIn(QUALITY, api.ListModels(pb.ListModelsRequest()).models[0].modes)

    def test_wire_forms_agree_bit_for_bit(self):
        hidden = h.router([prefill], [decode], "--wire_form", "hidden")
        with h.running(hidden):
            for mode, options in ((SPEED, {}), (QUALITY, SELECTION)):
                for length in (65, 300, 700):
                    kv = ask(api, length, mode, 12, **WITH_LOGPROBS, **options)
                    other = ask(h.stub(hidden), length, mode, 12, **WITH_LOGPROBS, **options)
                    self.assertEqual(logprobs(other), logprobs(kv))
                    self.assertEqual(kv.started.fill.wire_form, pb.WIRE_FORM_KV)
                    self.assertEqual(other.started.fill.wire_form, pb.WIRE_FORM_HIDDEN)
                    other.started.fill.wire_form = pb.WIRE_FORM_KV
                    self.assertEqual(other.started.fill, kv.started.fill)
        page = h.metrics(metrics_address(decode))
        self.assertGreaterEqual(page['ridgefill_decode_transfers_total{model="llama",wire_form="hidden"}'], 6)
        self.assertGreaterEqual(page['ridgefill_decode_transfers_total{model="llama",wire_form="kv"}'], 6)
        self.assertGreater(page['ridgefill_decode_fill_tokens_total{model="llama"}'], 0)

    def test_a_probe_selects_rows_on_decode_and_transports_agree(self):
        probe = {"selection": pb.SelectionOptions(share=0.25, selector=pb.SELECTOR_PROBE)}
        for length in (300, 700):
            over_grpc = ask(api, length, QUALITY, 12, **WITH_LOGPROBS, **probe)
            local = ask(embedded, length, QUALITY, 12, **WITH_LOGPROBS, **probe)
            self.assertEqual(logprobs(over_grpc), logprobs(local))
            fill = over_grpc.started.fill
            self.assertEqual(fill, local.started.fill)
            self.assertEqual((fill.mode, fill.reason, fill.wire_form), (QUALITY, "REQUESTED", pb.WIRE_FORM_HIDDEN))
            self.assertEqual(fill.exact, 32 + fill.outliers + fill.selected)
            self.assertGreaterEqual(fill.selected, 31)
            self.assertLessEqual(fill.selected, 0.25 * (length - 32) + 0.5)
        self.assertGreater(h.metrics(metrics_address(decode))['ridgefill_decode_probe_tokens_total{model="llama"}'], 0)

    def test_a_decode_worker_without_maps_fills_nothing(self):
        bare = h.decode("--maps", "none")
        routed = h.router([prefill], [bare])
        with h.running(routed, bare):
            self.assertEqual(logprobs(ask(h.stub(routed), 300, SPEED, 8, **WITH_LOGPROBS)),
                             logprobs(ask(api, 300, SPEED, 8, **WITH_LOGPROBS)))
            selection = pb.SelectionOptions(share=0.25, selector=pb.SELECTOR_PROBE)
            error = h.error_of(lambda: ask(h.stub(routed), 300, QUALITY, 8, selection=selection))
            self.assertEqual((error.code, error.reason), (grpc.StatusCode.FAILED_PRECONDITION, "NO_MAPS"))
            # Beside one that has maps a probe never comes to it.
            both = h.router([prefill], [bare, decode])
            with h.running(both):
                for _ in range(6):
                    fill = ask(h.stub(both), 300, QUALITY, 2, selection=selection).started.fill
                    self.assertEqual(fill.wire_form, pb.WIRE_FORM_HIDDEN)

    def test_in_wire_form_hidden_the_prefill_worker_needs_no_maps(self):
        bare = h.prefill("--maps", "none")
        routed = h.router([bare], [decode], "--wire_form", "hidden")
        with h.running(routed, bare):
            self.assertIn(SPEED, h.stub(routed).ListModels(pb.ListModelsRequest()).models[0].modes)
            for mode, options in ((SPEED, {}), (QUALITY, SELECTION)):
                other = ask(h.stub(routed), 300, mode, 8, **WITH_LOGPROBS, **options)
                self.assertEqual(other.started.fill.wire_form, pb.WIRE_FORM_HIDDEN)
                self.assertEqual(logprobs(other), logprobs(ask(api, 300, mode, 8, **WITH_LOGPROBS, **options)))

    def test_all_rows_exact_equals_no_maps_bit_for_bit(self):
        plain_prefill, plain_decode = h.prefill("--maps", "none"), h.decode("--maps", "none")
        here = h.decode("--maps", "none")
        plain, alone = h.router([plain_prefill], [plain_decode]), h.router([], [here])
        with h.running(plain, alone, plain_prefill, plain_decode, here):
            for length in (64, 333):
                expected = ask(h.stub(alone), length, EXACT, 12, **WITH_LOGPROBS)  # decode prefills, no frames at all
                self.assertEqual(expected.started.fill.reason, "NO_PREFILL_WORKERS")
                for service in (h.stub(plain), api, embedded):
                    self.assertEqual(logprobs(ask(service, length, EXACT, 12, **WITH_LOGPROBS)), logprobs(expected))

    def test_a_prefill_worker_with_lower_layers_only_gives_the_same(self):
        lower = h.prefill("--maps", maps, "--lower_layers_only", "true")
        self.assertEqual(h.describe_prefill(lower).loaded_layers, 3)
        routed = h.router([lower], [decode])
        with h.running(routed, lower):
            for mode, options in ((EXACT, {}), (SPEED, {}), (QUALITY, SELECTION)):
                self.assertEqual(logprobs(ask(h.stub(routed), 300, mode, 8, **WITH_LOGPROBS, **options)),
                                 logprobs(ask(api, 300, mode, 8, **WITH_LOGPROBS, **options)))

    def test_several_map_sets_each_fill_as_alone(self):
        both = f"{maps},{h.tiny_maps(split=1)}"
        # The last of two flags counts.
        workers = [h.prefill("--maps", "none", "--maps", both), h.decode("--maps", both)]
        routed = h.router([workers[0]], [workers[1]], "--quality_split", 1, "--speed_split", 2)
        alone_workers = [h.prefill("--maps", h.tiny_maps(split=1)), h.decode("--maps", h.tiny_maps(split=1))]
        alone = h.router([alone_workers[0]], [alone_workers[1]])
        with h.running(routed, alone, *workers, *alone_workers):
            service = h.stub(routed)
            model, = service.ListModels(pb.ListModelsRequest()).models
            self.assertEqual([set.split for set in model.maps], [2, 1])
            probe = {"selection": pb.SelectionOptions(share=0.25, selector=pb.SELECTOR_PROBE)}
            for other, split, mode, options in (
                    (api, 2, SPEED, {}), (h.stub(alone), 1, SPEED, {"split": 1}), (h.stub(alone), 1, QUALITY, SELECTION),
                    (api, 2, QUALITY, {**SELECTION, "split": 2}), (h.stub(alone), 1, QUALITY, probe)):
                expected = ask(other, 300, mode, 12, **WITH_LOGPROBS, **{k: v for k, v in options.items() if k != "split"})
                got = ask(service, 300, mode, 12, **WITH_LOGPROBS, **options)
                self.assertEqual(got.started.fill.split, split)
                self.assertEqual(got.started.fill, expected.started.fill)
                self.assertEqual(logprobs(got), logprobs(expected))
            with self.assertRaises(grpc.RpcError) as refused:
                ask(service, 300, SPEED, 1, split=3)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
            self.assertIn("there is one of 2, 1", refused.exception.details())

    def test_report_counts_every_prompt_row(self):
        for mode in (EXACT, SPEED, QUALITY, AUTO):
            for length in (5, 63, 64, 199, 200, 500):
                fill = ask(api, length, mode, 1).started.fill
                self.assertEqual(fill.filled + fill.exact, length)
                self.assertNotEqual(fill.mode, AUTO)
                if fill.mode in (SPEED, QUALITY):
                    self.assertEqual(fill.exact, 32 + fill.outliers + fill.selected)
                    self.assertEqual((fill.split, fill.tail), (2, 32))
                else:
                    self.assertEqual(fill.filled, 0)

    def test_reasons(self):
        reason = lambda length, mode: ask(api, length, mode, 1).started.fill.reason
        self.assertEqual(reason(3, EXACT), "LOCAL")
        self.assertEqual(reason(63, SPEED), "SHORT_PROMPT")
        self.assertEqual(reason(64, SPEED), "REQUESTED")
        self.assertEqual(reason(100, AUTO), "BELOW_AUTO_MIN")
        self.assertEqual(reason(200, AUTO), "LONG_PROMPT")
        self.assertEqual(reason(200, pb.FILL_MODE_UNSPECIFIED), "LONG_PROMPT")

    def test_text_chat_and_tokens(self):
        text = "It was the best of times, it was the worst of times; and so on for a while."
        ids = list(api.Tokenize(pb.TokenizeRequest(text=text.encode())).ids)
        self.assertEqual(api.Detokenize(pb.DetokenizeRequest(ids=ids)).text, text)
        self.assertEqual(ask(api, text).ids, ask(api, ids).ids)
        chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=text.encode())])
        chat_ids = list(api.Tokenize(pb.TokenizeRequest(chat=chat)).ids)
        self.assertGreater(len(chat_ids), len(ids))
        asked = h.request([1])
        asked.chat.CopyFrom(chat)
        self.assertEqual(ask(api, asked).ids, ask(api, chat_ids).ids)

    def test_text_is_the_tokens_text(self):
        answer = ask(api, 150, EXACT, 64)
        self.assertEqual(answer.text, api.Detokenize(pb.DetokenizeRequest(ids=answer.ids)).text)
        self.assertEqual(answer.finished.usage.prompt_tokens, 150)
        self.assertEqual(answer.finished.usage.generated_tokens, 64)
        self.assertEqual(answer.finished.reason, pb.FINISH_REASON_LENGTH)

    def test_seed_is_echoed_and_repeats(self):
        warm = {"sampling": pb.SamplingOptions(temperature=1.5)}
        first = ask(api, 90, EXACT, 20, **warm)
        again = ask(api, 90, EXACT, 20, sampling=pb.SamplingOptions(temperature=1.5, seed=first.started.seed))
        self.assertEqual(again.started.seed, first.started.seed)
        self.assertEqual(again.ids, first.ids)
        top = 2**64 - 1
        self.assertEqual(ask(api, 90, EXACT, 1, sampling=pb.SamplingOptions(seed=top)).started.seed, top)
        self.assertGreater(len({tuple(ask(api, 90, EXACT, 20, **warm).ids) for _ in range(4)}), 1)

    def test_logprobs(self):
        answer = ask(api, 100, EXACT, 6, logprobs=pb.LogprobOptions(enabled=True, top=5))
        for token in answer.tokens:
            self.assertEqual(len(token.top), 5)
            self.assertEqual(token.top[0].id, token.id, "greedy takes the most likely")
            self.assertEqual(token.top[0].logprob, token.logprob)
            self.assertEqual(sorted((t.logprob for t in token.top), reverse=True), [t.logprob for t in token.top])
        self.assertFalse(ask(api, 100).tokens[0].HasField("logprob"))
        prompt = ask(api, 100, EXACT, 1, logprobs=pb.LogprobOptions(prompt=True)).started.prompt_logprobs
        self.assertEqual(len(prompt), 99)
        self.assertTrue(all(value <= 0 for value in prompt))

    def test_stops(self):
        plain = ask(api, 120, EXACT, 40)
        # A stop string made of the ends of two neighbouring tokens.
        texts = [api.Detokenize(pb.DetokenizeRequest(ids=[i])).text for i in plain.ids]
        at = next(i for i in range(5, 30) if "\ufffd" not in texts[i] + texts[i + 1] and texts[i] and texts[i + 1])
        stop = texts[at][-1] + texts[at + 1][0]
        cut = ask(api, 120, EXACT, 40, stop=pb.StopOptions(stop_strings=[stop.encode()]))
        self.assertEqual(cut.finished.reason, pb.FINISH_REASON_STOP_STRING)
        self.assertEqual(cut.finished.stop_string, stop)
        self.assertEqual(cut.text, plain.text[:plain.text.index(stop)])
        by_id = ask(api, 120, EXACT, 40, stop=pb.StopOptions(stop_ids=[plain.ids[10]]))
        self.assertEqual(by_id.finished.reason, pb.FINISH_REASON_STOP)
        self.assertTrue(by_id.tokens[-1].is_stop)
        self.assertEqual(by_id.ids, plain.ids[:plain.ids.index(plain.ids[10]) + 1])

    def test_parts_of_ttft_add_up(self):
        for mode in (EXACT, SPEED):
            timing = ask(api, 600, mode, 3).finished.timing
            parts = [timing.admission_wait, timing.route, timing.decode_queue, timing.prefill_queue,
                     timing.prefill_compute, timing.transfer_exposed, timing.late_pass, timing.first_step]
            self.assertTrue(all(part >= 0 for part in parts), parts)
            self.assertAlmostEqual(sum(parts), timing.ttft, delta=0.002)
            self.assertGreaterEqual(timing.total, timing.ttft)
            self.assertGreater(timing.prefill_compute, 0)

    def test_list_models(self):
        for service in (api, embedded):
            model, = service.ListModels(pb.ListModelsRequest()).models
            self.assertEqual((model.name, model.architecture, model.context_tokens), ("llama", "llama", 2048))
            self.assertEqual(list(model.modes), [AUTO, EXACT, SPEED, QUALITY])
            self.assertEqual([(set.split, set.tail_default) for set in model.maps], [(2, 32)])
            self.assertEqual(len(model.maps[0].digest), 64)
            self.assertTrue(model.chat)


class Operations(unittest.TestCase):

    def test_request_id_and_trace_pass_through_and_the_prompt_does_not(self):
        secret = "zanzibar marmalade zanzibar marmalade zanzibar"
        answer = ask(api, secret, EXACT, 2, metadata=[("traceparent", TRACE)])
        request_id = answer.started.request_id
        self.assertEqual(answer.metadata["x-request-id"], request_id)
        line = router.wait_log("request", request=request_id)
        self.assertEqual((line["trace"], line["status"], line["generated_tokens"]), (TRACE, "OK", 2))
        decode.wait_log("decode", request=request_id, trace=TRACE)
        prefill.wait_log("prefill", trace=TRACE)
        for program in (router, decode, prefill):
            self.assertNotIn("zanzibar", program.text())

    def test_health_by_service_name(self):
        for program, name in ((router, "GenerationService"), (decode, "DecodeService"), (prefill, "PrefillService")):
            health = h.health_pb2_grpc.HealthStub(grpc.insecure_channel(program.address))
            for service in ("", f"ridgefill.v1.{name}"):
                status = health.Check(h.health_pb2.HealthCheckRequest(service=service)).status
                self.assertEqual(status, h.health_pb2.HealthCheckResponse.SERVING)
            error = h.error_of(lambda: health.Check(h.health_pb2.HealthCheckRequest(service="other")))
            self.assertEqual(error.code, grpc.StatusCode.NOT_FOUND)

    def test_reflection_lists_the_service(self):
        channel = grpc.insecure_channel(router.address)
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        listed = next(call(iter([b"\x3a\x00"])))  # ServerReflectionRequest {list_services: ""}
        self.assertIn(b"ridgefill.v1.GenerationService", listed)

    def test_probes_and_metrics(self):
        before = h.metrics(metrics_address(router)).get('ridgefill_requests_total{code="OK",mode="SPEED",model="llama"}', 0)
        ask(api, 300, SPEED, 5)
        h.error_of(lambda: ask(api, ""))
        for program in (router, decode, prefill):
            for path in ("/healthz", "/readyz"):
                self.assertEqual(h.http_get(metrics_address(program), path)[0], 200)
        h.eventually(lambda: h.all_blocks_free(decode), "blocks free")
        page = h.metrics(metrics_address(router))
        self.assertEqual(page['ridgefill_requests_total{code="OK",mode="SPEED",model="llama"}'], before + 1)
        self.assertGreater(page['ridgefill_requests_total{code="INVALID_ARGUMENT",mode="none",model="llama"}'], 0)
        labels = 'mode="SPEED",model="llama",prompt_length="le_512",split="2"'
        total = page[f"ridgefill_ttft_seconds_sum{{{labels}}}"]
        parts = sum(value for name, value in page.items()
                    if name.startswith("ridgefill_ttft_part_seconds_sum") and 'mode="SPEED"' in name and
                    'prompt_length="le_512"' in name)
        self.assertAlmostEqual(parts, total, delta=0.05 * total)
        worker = h.metrics(metrics_address(decode))
        blocks = {name: worker[f'ridgefill_decode_blocks{{model="llama",state="{name}"}}']
                  for name in ("free", "used", "cached")}
        self.assertEqual(sum(blocks.values()), worker['ridgefill_decode_blocks_capacity{model="llama"}'])
        sent = h.metrics(metrics_address(prefill))['ridgefill_prefill_transfer_bytes_total{model="llama"}']
        self.assertGreater(sent, 0)

    def test_command_line_client(self):
        run = lambda *arguments: subprocess.run(
            [str(h.BIN / "ridgefill"), *map(str, arguments)], capture_output=True, text=True, timeout=h.PATIENCE,
            input="first\nsecond\n", check=True)
        common = ("--target", router.address, "--temperature", 0, "--max_tokens", 5, "--ignore_eos")
        once = run("generate", *common, "--raw", "--prompt", "Once upon a time", "--mode", "EXACT", "--json")
        answer = json.loads(once.stdout)
        self.assertEqual(answer["started"]["fill"]["mode"], "FILL_MODE_EXACT")
        self.assertEqual(answer["text"], ask(api, "Once upon a time", EXACT, 5).text)
        streamed = run("generate", *common, "--raw", "--prompt", "Once upon a time", "--mode", "EXACT")
        self.assertEqual(streamed.stdout, answer["text"] + "\n")
        self.assertIn("time to first token", streamed.stderr)
        latin = h.SCRATCH / "latin1.txt"
        latin.write_bytes("caf\u00e9 au lait".encode("latin-1"))
        refused = subprocess.run([str(h.BIN / "ridgefill"), "generate", "--target", router.address, "--prompt_file",
                                  str(latin)], capture_output=True, text=True, timeout=h.PATIENCE)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"{latin} is not valid UTF-8 at byte 3", refused.stderr)
        chat = run("generate", *common, "--chat")
        self.assertEqual(chat.stderr.count("time to first token"), 2)
        quality = run("generate", *common, "--raw", "--prompt", "Once upon a time. " * 40, "--mode", "quality",
                      "--share", 0.2, "--selector", "random")
        self.assertRegex(quality.stderr, r"QUALITY, REQUESTED: .* [1-9][0-9]* selected.*wire form kv")
        probe = run("generate", *common, "--raw", "--prompt", "Once upon a time. " * 40, "--mode", "quality",
                    "--share", 0.2, "--selector", "probe")
        self.assertRegex(probe.stderr, r"QUALITY, REQUESTED: .* [1-9][0-9]* selected.*wire form hidden")
        bench = run("bench", "ttft", "--target", router.address, "--lengths", "100,300", "--reps", 2)
        lines = [json.loads(line) for line in bench.stdout.splitlines()]
        self.assertEqual([(line["prompt_tokens"], line["mode"]) for line in lines],
                         [(100, "EXACT"), (100, "SPEED"), (300, "EXACT"), (300, "SPEED")])
        self.assertEqual(list(lines[0]), ["bench", "model", "mode", "selector", "split", "tail", "prompt_tokens", "selected", "batch",
                                          "ms_median", "ms_min", "tokens_per_s", "threads", "isa"])

    def test_command_lines_that_are_not_whole(self):
        run = lambda program, *arguments: subprocess.run([str(h.BIN / program), *arguments], capture_output=True, text=True,
                                                         timeout=h.PATIENCE)
        unknown = run("ridgefill", "evaluate", "--help")
        self.assertEqual((unknown.returncode, unknown.stdout), (2, ""))
        self.assertIn("unknown command 'evaluate'", unknown.stderr)
        for program in ("ridgefill-router", "ridgefill-prefill", "ridgefill-decode"):
            shown = run(program, "--print_config")
            self.assertEqual(shown.returncode, 2)
            self.assertIn("drain_seconds", json.dumps(json.loads(shown.stdout)).replace("drainSeconds", "drain_seconds"))
            self.assertIn("source.model", shown.stderr)
        bench = run("ridgefill", "bench", "ttft", "--target", router.address, "--lengths", "20", "--reps", "1")
        self.assertIn("SPEED of 20 tokens ran EXACT (SHORT_PROMPT)", bench.stderr)

    def test_benchmarks_of_the_engines(self):
        for bench, extra in (("prefill", ("--modes", "EXACT,QUALITY", "--selector", "probe")), ("decode", ("--batches", "1,3", "--tokens", 8))):
            out = subprocess.run([str(h.BIN / "ridgefill"), "bench", bench, "--model", str(h.TINY), "--maps", str(maps),
                                  "--kv_memory_mb", "32", "--lengths", "128", "--reps", "1", *map(str, extra)],
                                 capture_output=True, text=True, timeout=h.PATIENCE, check=True)
            lines = [json.loads(line) for line in out.stdout.splitlines()]
            self.assertEqual(len(lines), 2)
            self.assertEqual([line["batch"] for line in lines], [1, 1] if bench == "prefill" else [1, 3])
            self.assertEqual([line["selector"] for line in lines], [None, "probe" if bench == "prefill" else None])
            self.assertTrue(all(line["ms_median"] > 0 and line["tokens_per_s"] > 0 for line in lines))


if __name__ == "__main__":
    h.main()
