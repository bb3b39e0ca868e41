# CPU image with the four programs. docker build -t ridgefill .
# Run one program a container, for example:
#   docker run -v models:/models ridgefill ridgefill-prefill --model /models/smollm2-135m-instruct.gguf --listen 0.0.0.0:50152

FROM debian:12-slim AS build
WORKDIR /src
# The installer alone first, so that a change of the sources does not install everything again.
COPY deploy/install_deps.sh deploy/
RUN deploy/install_deps.sh --build
COPY . .
RUN cmake --preset release \
 && cmake --build --preset release --target programs \
 && cmake --install build/release --prefix /opt/ridgefill --strip

FROM debian:12-slim
COPY deploy/install_deps.sh /tmp/
RUN /tmp/install_deps.sh --runtime && rm -rf /tmp/install_deps.sh /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home --home-dir /var/lib/ridgefill ridgefill
COPY --from=build /opt/ridgefill/bin /usr/local/bin
USER ridgefill
# Models and maps by name are looked up here; mount a volume.
ENV RIDGEFILL_HOME=/var/lib/ridgefill
VOLUME /var/lib/ridgefill
LABEL org.opencontainers.image.title="RidgeFill Serve" \
      org.opencontainers.image.description="Disaggregated LLM serving with ridge-filled prefill" \
      org.opencontainers.image.licenses="Apache-2.0"
CMD ["ridgefill", "--help"]
