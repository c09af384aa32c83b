package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// keyPair writes a certificate and its private key into files, and gives a line of the key.
func keyPair(t *testing.T, certFile, keyFile string) (secret string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	of, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: of}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, text, 0o600))
	return strings.Split(string(text), "\n")[2]
}

// TestSecretsStayOutOfTheAPI looks for a peer's password, right and wrong, the tokens of the daemons and the key of their
// metrics in all that they leave in the API server: status and conditions, events, Leases, nodes' labels and the rest; and in what
// "egressway diagnose" packs.
func TestSecretsStayOutOfTheAPI(t *testing.T) {
	s := play(t, stage.Options{API: true, Manifests: oneFile(t)})
	ctx := t.Context()
	hosts(t, s)
	secrets := map[string]string{"password": "lab-secret", "wrong password": "canary-wrong", "password that is none": "canary-long"}
	token := regexp.MustCompile(`token: *"?([^"\s]+)`)
	const file = "/run/egressway/peer.password" // of each node
	write := func(content string) {
		t.Helper()
		for node := range s.Daemons {
			require.NoError(t, s.Node(node).Do(func() error { return os.WriteFile(file, []byte(content), 0o600) }))
		}
	}
	for node := range s.Daemons {
		kubeconfig, err := os.ReadFile(s.Kubeconfig(node))
		require.NoError(t, err)
		found := token.FindStringSubmatch(string(kubeconfig))
		require.NotNil(t, found)
		secrets["token of "+node] = found[1]
	}
	folder, err := os.MkdirTemp("/dev/shm", "keys-") //nolint:usetesting // nodes see it too
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	secrets["key of the metrics"] = keyPair(t, folder+"/cert.pem", folder+"/key.pem")
	write("lab-secret\n")
	require.NoError(t, s.EditConfig(func(c string) string {
		return strings.ReplaceAll(c, "/etc/egressway/red2.password", file) +
			fmt.Sprintf("\nlog: {level: debug}\nstatus: {metricsTLS: {certFile: %[1]s/cert.pem, keyFile: %[1]s/key.pem}}\n", folder)
	}))

	// look reads all that the API server has of the daemons' hand, and diagnoses.
	look := func() {
		t.Helper()
		said := map[string]string{}
		for _, kind := range []string{
			"apiVersion: k8s.ovn.org/v1, kind: EgressService", "apiVersion: v1, kind: Event", "apiVersion: coordination.k8s.io/v1, kind: Lease",
			"apiVersion: v1, kind: Node", "apiVersion: v1, kind: Service", "apiVersion: v1, kind: ConfigMap",
		} {
			var all unstructured.UnstructuredList
			require.NoError(t, s.API.List(ctx, "{"+kind+", metadata: {name: all}}", &all))
			text, err := json.Marshal(all.Items)
			require.NoError(t, err)
			said[kind] = string(text)
		}
		require.Contains(t, said["apiVersion: k8s.ovn.org/v1, kind: EgressService"], "HostAssigned")
		require.Contains(t, said["apiVersion: coordination.k8s.io/v1, kind: Lease"], "egressway")
		for node := range s.Daemons {
			out, err := s.Node(node).Run(ctx, "sh", "-c", mustBinary(t)+" diagnose --config "+strings.TrimSuffix(s.Kubeconfig(node), ".kubeconfig")+".yaml -f - | tar -xzO")
			require.NoError(t, err)
			require.Contains(t, out, "passwordFile: "+file)
			said["diagnosis of "+node] = out
		}
		for where, text := range said {
			for what, secret := range secrets {
				if i := strings.Index(text, secret); i >= 0 {
					require.Fail(t, "a secret is told", "%s in %s: %s", what, where, text[max(0, i-300):min(len(text), i+100)])
				}
			}
		}
	}
	restart := func() {
		t.Helper()
		for node := range s.Daemons {
			require.NoError(t, s.Daemons[node].Stop(ctx))
			require.NoError(t, s.StartDaemon(node))
		}
	}
	restart() // with the key, and the password's file
	hosts(t, s)
	look()
	write("canary-wrong\n")
	restart()
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		_, up, err := established(s, "red2", "10.1.0.11")
		if err == nil && up {
			err = errors.New("a session is up with a wrong password")
		}
		return err
	}))
	hosts(t, s)
	look()

	// A file that holds no password: the configuration is refused while the daemon runs.
	write(strings.Repeat("canary-long", 8) + "\n")
	for node := range s.Daemons {
		config := strings.TrimSuffix(s.Kubeconfig(node), ".kubeconfig") + ".yaml"
		b, err := os.ReadFile(config)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(config, append(b, "# touched\n"...), 0o644))
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if !strings.Contains(s.Daemons[node].Log(), "more than 80 bytes") {
				return fmt.Errorf("the daemon on %s does not tell of the file", node)
			}
			return nil
		}))
	}
	look()

	// An object that is wrong has events.
	require.NoError(t, s.API.Apply(ctx, "{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {namespace: shop, name: nothing}, spec: {sourceIPBy: LoadBalancerIP, network: red}}"))
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		var events corev1.EventList
		err := s.API.List(ctx, "{apiVersion: v1, kind: Event, metadata: {name: all}}", &events)
		if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == "nothing" }) {
			err = errors.New("no event of EgressService nothing yet")
		}
		return err
	}))
	write("lab-secret\n")
	restart()
	hosts(t, s)
	look()
}
