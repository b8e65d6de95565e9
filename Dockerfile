# The service, with nothing beside it. Mount a configuration:
#   docker run -p 8080:8080 -p 6380:6380 -v ./tidegate.yaml:/etc/tidegate/tidegate.yaml:ro tidegate
# A container is reached from outside, so its file has to say `0.0.0.0:…` where others may ask.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p tidegate-server

FROM debian:bookworm-slim
# Return the memory of replaced rules to the system instead of keeping it for later.
ENV MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=131072
USER 65532:65532
COPY --from=build /src/target/release/tidegate /usr/bin/tidegate
EXPOSE 8080 8081 6380 9090
HEALTHCHECK --interval=10s --timeout=6s CMD ["/usr/bin/tidegate", "health"]
ENTRYPOINT ["/usr/bin/tidegate"]
CMD ["serve", "--config", "/etc/tidegate/tidegate.yaml"]
