# The Makefile includes this file. See test/bench/README.md.
PEER := $(BIN)/peer

$(PEER)/kube-apiserver $(PEER)/etcd $(PEER)/nats-server &: test/bench/kubernetes/go.mod
	@echo "building kube-apiserver $(KUBERNETES), etcd and nats-server"
	@cd test/bench/kubernetes && $(RELEASE) go build -ldflags "-s -w $(STAMP)" -o $(PEER)/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
	@cd test/bench/kubernetes && $(RELEASE) go build -ldflags "-s -w" -o $(PEER)/etcd go.etcd.io/etcd/server/v3
	@cd test/bench/kubernetes && $(RELEASE) go build -ldflags "-s -w" -o $(PEER)/nats-server github.com/nats-io/nats-server/v2

# The binaries are phony, because Go itself decides whether they are out of date.
.PHONY: $(PEER)/peer $(PEER)/compare
$(PEER)/peer $(PEER)/compare:
	@cd test/bench/kubernetes && $(RELEASE) go build -o $@ ./$(notdir $@)

.PHONY: bench-peer
bench-peer: build $(PEER)/kube-apiserver $(PEER)/etcd $(PEER)/nats-server $(PEER)/peer ### compare with kube-apiserver and etcd under one load, with TLS on both sides; ARGS="--shape three" for three log servers beside three etcd (about 10 minutes)
	@LOGPLANE_BINARY=$(BIN)/logplane PEER_BINARIES=$(PEER) $(PEER)/peer $(ARGS)

.PHONY: bench-compare
bench-compare: build $(PEER)/kube-apiserver $(PEER)/etcd $(PEER)/nats-server $(PEER)/compare ### send the same requests to logplane and kube-apiserver and diff the answers
	@LOGPLANE_BINARY=$(BIN)/logplane PEER_BINARIES=$(PEER) $(PEER)/compare $(ARGS)

.PHONY: bench-peer-profiled
bench-peer-profiled: $(PEER)/peer $(PEER)/kube-apiserver $(PEER)/etcd $(PEER)/nats-server ### a CPU profile of logplane for each step of that load, in bin/peer/profiles
	@echo '{"Replace": {"$(CURDIR)/cmd/logplane/profiler.go": "$(CURDIR)/test/bench/kubernetes/profiled/profiler.go.txt"}}' >$(PEER)/overlay.json
	@$(RELEASE) go build -overlay $(PEER)/overlay.json -ldflags "$(STAMP)" -o $(PEER)/logplane ./cmd/logplane
	@mkdir -p $(PEER)/profiles
	@LOGPLANE_BINARY=$(PEER)/logplane PEER_BINARIES=$(PEER) $(PEER)/peer --only logplane --rounds 1 --profiles $(PEER)/profiles $(ARGS)

.PHONY: bench-history
bench-history: ### what the past costs in a cell that has seen a million changes (about 6 minutes)
	@$(MEMORY) $(RELEASE) LOGPLANE_EVENTS=$${LOGPLANE_EVENTS:-1000000} go test ./internal/apiserver -run '^$$' -bench 'Past$$' -benchtime 1x -timeout 30m

.PHONY: bench-functions
bench-functions: build ### what an invocation of an emulated AWS Lambda takes, cold and warm, and what a million cost
	@$(MEMORY) $(RELEASE) LOGPLANE_BINARY=$(BIN)/logplane go test ./test/serverless -run '^$$' -bench Invocation -benchtime 5x -count 1
