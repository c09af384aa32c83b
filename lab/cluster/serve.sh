#!/bin/bash
# serve.sh: three pods, one on each node, behind a LoadBalancer Service with an EgressService, with ingress IPs of
# MetalLB. It fails unless each pod's packets arrive at the host outside with the ingress IP as source, and that host reaches the
# pods by it, over the routes that its router has by BGP.
set -eu
here=$(dirname "$(readlink -f "$0")")
. "$here/net.sh"
ingress4=203.0.113.10 ingress6=2001:db8:203::10

fail() { echo "cluster: $*" >&2; exit 1; }
kubectl apply -f "$here/web.yaml" >/dev/null
kubectl -n shop rollout status daemonset/web --timeout=300s >/dev/null
kubectl -n shop wait --for=condition=Ready egressservice/web --timeout=300s >/dev/null
host=$(kubectl -n shop get egressservice web -o jsonpath='{.status.host}')

# seen succeeds when the container outside sees a pod with the ingress IPs; it leaves the answers in the variable answers.
seen() { # POD
	answers=$(kubectl -n shop exec "$1" -- box ask "http://$outside4:8080/" "http://[$outside6]:8080/" 2>&1) &&
		[ "$answers" = "$ingress4 outside"$'\n'"$ingress6 outside" ]
}
while read -r pod node; do
	for _ in $(seq 100); do seen "$pod" && break; done
	seen "$pod" || fail "$pod on $node: outside saw ${answers//$'\n'/, }, not $ingress4 and $ingress6"
	printf '  %-10s on %s: outside saw %s and %s\n' "$pod" "$node" "$ingress4" "$ingress6"
done < <(kubectl -n shop get pods -l role=web -o jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}')
for url in "$outside4 http://$ingress4:8080/" "$outside6 http://[$ingress6]:8080/"; do
	# shellcheck disable=SC2086 # words
	for _ in $(seq 10); do answer=$(docker exec outside box ask -from $url) && break; done
	[ -n "$answer" ] || fail "outside got no answer from ${url#* }"
	printf '  outside asks %s, by %s: %s answers\n' "${url#* }" "$host" "${answer#* }"
done
