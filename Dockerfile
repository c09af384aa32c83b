# The daemon alone: no shell, no libraries. VERSION=$(git describe --tags --always --dirty)
#   docker build --build-arg VERSION=$VERSION -t egressway:dev .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=devel
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags grpcnotrace \
    -ldflags "-s -w -X main.version=$VERSION" -o /out/usr/local/bin/egressway ./cmd/egressway

FROM scratch
ARG VERSION=devel
LABEL org.opencontainers.image.title="Egressway" \
      org.opencontainers.image.description="Egress for pods by a given network, with their Service's address as source" \
      org.opencontainers.image.source="https://github.com/egressway/egressway" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /out /
ENV PATH=/usr/local/bin
# Capabilities take effect for root only; each DaemonSet drops all but one.
USER 0:0
ENTRYPOINT ["egressway"]
