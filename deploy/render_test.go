package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	k8syaml "sigs.k8s.io/yaml"
)

// TestSameCRDs compares the chart's copies with the generated CRDs, of which the kustomize base has the same.
func TestSameCRDs(t *testing.T) {
	copies, err := os.ReadDir(chart + "/crds")
	require.NoError(t, err)
	var names []any
	for _, c := range copies {
		names = append(names, c.Name())
		generated, err := os.ReadFile("../config/crd/" + c.Name())
		require.NoError(t, err)
		copied, err := os.ReadFile(chart + "/crds/" + c.Name())
		require.NoError(t, err)
		require.Equal(t, string(generated), string(copied), `"make generate" copies it`)
	}
	text, err := os.ReadFile("../config/crd/Kustomization")
	require.NoError(t, err)
	var base map[string]any
	require.NoError(t, k8syaml.Unmarshal(text, &base))
	require.Equal(t, names, base["resources"])
}

// TestOneVersion compares the version of the chart, of the image in each kustomization, and of the files that docs/install.md names.
func TestOneVersion(t *testing.T) {
	b, err := os.ReadFile(chart + "/Chart.yaml")
	require.NoError(t, err)
	var of struct{ Version, AppVersion string }
	require.NoError(t, k8syaml.Unmarshal(b, &of))
	require.Equal(t, "v"+of.Version, of.AppVersion)
	for _, folder := range []string{base, "kustomize/cleanup"} {
		b, err := os.ReadFile(folder + "/kustomization.yaml")
		require.NoError(t, err)
		var k struct{ Images []struct{ NewTag string } }
		require.NoError(t, k8syaml.Unmarshal(b, &k))
		require.Len(t, k.Images, 1, folder)
		require.Equal(t, of.AppVersion, k.Images[0].NewTag, folder)
	}
	page, err := os.ReadFile("../docs/install.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "git clone --branch "+of.AppVersion+" ")
	require.Contains(t, string(page), "?ref="+of.AppVersion+"'")
}

// TestSameObjects compares the objects of helm and kustomize for the same settings.
func TestSameObjects(t *testing.T) {
	for _, c := range []struct {
		name, values string
		components   []string
	}{
		{name: "defaults"},
		{name: "metrics", values: "podMonitor: {enabled: true}", components: []string{"podmonitor"}},
		{name: "alerts", values: "prometheusRule: {enabled: true}", components: []string{"prometheusrule"}},
		{name: "labels", values: "labelHosts: true", components: []string{"host-label"}},
		{name: "policy", values: "admissionPolicy: {enabled: true}", components: []string{"admission-policy"}},
		{name: "all", values: "{podMonitor: {enabled: true}, labelHosts: true}", components: []string{"podmonitor", "host-label"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			helm, kustomize := rendered(t, c.values), built(t, overlay(t, c.components...))
			require.Equal(t, configOf(t, kustomize), configOf(t, helm))
			for _, o := range []objects{helm, kustomize} {
				normalize(o)
			}
			require.Equal(t, slices.Sorted(maps.Keys(kustomize)), slices.Sorted(maps.Keys(helm)))
			for key, o := range kustomize {
				require.Equal(t, o.Object, helm[key].Object, key)
			}
		})
	}
}

// normalize removes differences that are allowed. Helm makes no namespace: its own record is in it beforehand.
func normalize(o objects) {
	delete(o, "Namespace /"+namespace)
	for _, u := range o {
		u.SetLabels(nil)
		if u.GetKind() == "ConfigMap" {
			delete(u.Object, "data") // compared as the daemon reads it
		}
	}
}

func TestLint(t *testing.T) {
	run(t, "helm", "lint", "--strict", chart)
	run(t, "helm", "lint", "--strict", chart, "--values", file(t, "{podMonitor: {enabled: true}, labelHosts: true, dashboard: {enabled: true}, nameOverride: egw}"))
}

// TestPrivileges holds the daemon's privileges on a node to those that it needs.
func TestPrivileges(t *testing.T) {
	spec := daemonSet(t, built(t, base), "egressway").Spec.Template.Spec
	require.True(t, spec.HostNetwork)
	require.False(t, spec.HostPID || spec.HostIPC)
	require.Empty(t, spec.InitContainers)
	require.Len(t, spec.Containers, 1)
	confined(t, spec.Containers[0], "NET_ADMIN")

	speaker := daemonSet(t, built(t, base), "egressway-speaker").Spec.Template.Spec
	require.True(t, speaker.HostNetwork)
	require.False(t, speaker.HostPID || speaker.HostIPC || *speaker.AutomountServiceAccountToken)
	require.Empty(t, speaker.InitContainers)
	require.Len(t, speaker.Containers, 1)
	confined(t, speaker.Containers[0], "NET_RAW")
	require.Equal(t, spec.Containers[0].Image, speaker.Containers[0].Image)

	cleanup := daemonSet(t, built(t, "kustomize/cleanup"), "egressway-cleanup").Spec.Template.Spec
	require.Len(t, cleanup.InitContainers, 1)
	require.Len(t, cleanup.Containers, 1)
	confined(t, cleanup.InitContainers[0], "NET_ADMIN")
	confined(t, cleanup.Containers[0])
	require.Equal(t, spec.Volumes, cleanup.Volumes, "cleanup reads the daemon's configuration and finds its socket")
	require.Equal(t, spec.Containers[0].Image, cleanup.InitContainers[0].Image)
}

func confined(t *testing.T, c corev1.Container, capabilities ...corev1.Capability) {
	t.Helper()
	s := c.SecurityContext
	require.NotNil(t, s, c.Name)
	require.False(t, s.Privileged != nil && *s.Privileged)
	require.NotNil(t, s.AllowPrivilegeEscalation)
	require.False(t, *s.AllowPrivilegeEscalation)
	require.NotNil(t, s.ReadOnlyRootFilesystem)
	require.True(t, *s.ReadOnlyRootFilesystem)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, s.SeccompProfile.Type)
	require.Equal(t, []corev1.Capability{"ALL"}, s.Capabilities.Drop)
	require.Equal(t, capabilities, s.Capabilities.Add)
	require.False(t, c.Resources.Requests.Memory().IsZero())
}

func daemonSet(t *testing.T, o objects, name string) *appsv1.DaemonSet {
	t.Helper()
	u := o["DaemonSet "+namespace+"/"+name]
	require.NotNil(t, u)
	var d appsv1.DaemonSet
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &d, true))
	return &d
}

// TestSpeaker checks that daemon and speaker use the same socket, passwords and nodes.
func TestSpeaker(t *testing.T) {
	o := built(t, base)
	set := daemonSet(t, o, "egressway-speaker")
	require.Equal(t, appsv1.OnDeleteDaemonSetStrategyType, set.Spec.UpdateStrategy.Type, "an update costs sessions")
	speaker, daemon := set.Spec.Template.Spec, daemonSet(t, o, "egressway").Spec.Template.Spec
	require.Equal(t, []string{"speaker", "--socket=" + configOf(t, o).Speaker.Socket}, speaker.Containers[0].Args)
	require.Contains(t, daemon.Containers[0].Env, corev1.EnvVar{Name: "EGRESSWAY_SPEAKER_START", Value: "false"})
	require.NotEqual(t, set.Spec.Selector, daemonSet(t, o, "egressway").Spec.Selector)

	mounted := func(p corev1.PodSpec) (paths []string) {
		for _, m := range p.Containers[0].VolumeMounts {
			paths = append(paths, m.MountPath)
		}
		return paths
	}
	require.Equal(t, mounted(daemon), mounted(speaker))
	require.Equal(t, daemon.Volumes[0].Projected.Sources[1].Secret.Name, speaker.Volumes[0].Secret.SecretName)
	require.Equal(t, daemon.Volumes[1], speaker.Volumes[1])
	require.Equal(t, daemon.NodeSelector, speaker.NodeSelector)
	require.Equal(t, daemon.Tolerations, speaker.Tolerations)
	require.Equal(t, daemon.PriorityClassName, speaker.PriorityClassName)
	require.NotContains(t, speaker.Containers[0].SecurityContext.Capabilities.Add, corev1.Capability("NET_BIND_SERVICE"))

	o = rendered(t, `{config: {speaker: {socket: /run/egressway/s.sock}, log: {level: debug, format: json}}, passwordSecret: bgp,
		tolerations: [], affinity: {podAffinity: {}}, speaker: {resources: {limits: {memory: 2Gi}}}}`)
	speaker = daemonSet(t, o, "egressway-speaker").Spec.Template.Spec
	require.Equal(t, []string{"speaker", "--socket=/run/egressway/s.sock", "--log-level=debug", "--log-format=json"}, speaker.Containers[0].Args)
	require.Equal(t, "bgp", speaker.Volumes[0].Secret.SecretName)
	require.Empty(t, speaker.Tolerations)
	require.NotNil(t, speaker.Affinity)
	require.Equal(t, "2Gi", speaker.Containers[0].Resources.Limits.Memory().String())
}

// TestValues checks that each value reaches its object.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		name, values string
		check        func(*testing.T, objects, corev1.PodSpec)
	}{
		{"an AS number of 32 bits stays a number", "config: {bgp: {asn: 4200000001}}", func(t *testing.T, o objects, _ corev1.PodSpec) {
			require.EqualValues(t, 4200000001, configOf(t, o).BGP.ASN)
		}},
		{
			"quoted values stay strings", `config: {marks: {mask: "0x3f00"}, networks: [{name: "100", table: 100}], clusterCIDRs: ["fd44::/16"]}`,
			func(t *testing.T, o objects, _ corev1.PodSpec) {
				c := configOf(t, o)
				require.EqualValues(t, 0x3f00, c.Marks.Mask)
				require.Equal(t, "100", c.Networks[0].Name)
				require.Equal(t, "fd44::/16", c.ClusterCIDRs[0].String())
			},
		},
		{"probes follow the metrics address", `config: {status: {metricsAddress: "[fd00::1]:9000"}}`, func(t *testing.T, _ objects, p corev1.PodSpec) {
			require.EqualValues(t, 9000, p.Containers[0].Ports[0].ContainerPort)
			require.Equal(t, "fd00::1", p.Containers[0].LivenessProbe.HTTPGet.Host)
			require.Equal(t, "fd00::1", p.Containers[0].ReadinessProbe.HTTPGet.Host)
		}},
		{"probes ask the loopback address for all addresses", `config: {status: {metricsAddress: "0.0.0.0:9000"}}`, func(t *testing.T, _ objects, p corev1.PodSpec) {
			require.Equal(t, "127.0.0.1", p.Containers[0].LivenessProbe.HTTPGet.Host)
		}},
		{
			"metrics by TLS", `{podMonitor: {enabled: true, tlsConfig: {insecureSkipVerify: true}}, config: {status: {metricsTLS: {certFile: tls.crt, keyFile: tls.key}}}}`,
			func(t *testing.T, o objects, p corev1.PodSpec) {
				require.Equal(t, corev1.URISchemeHTTPS, p.Containers[0].LivenessProbe.HTTPGet.Scheme)
				require.Equal(t, corev1.URISchemeHTTPS, p.Containers[0].ReadinessProbe.HTTPGet.Scheme)
				require.Equal(t, "tls.crt", filepath.Base(configOf(t, o).Status.MetricsTLS.CertFile))
				endpoints, _, err := unstructured.NestedSlice(o["PodMonitor "+namespace+"/egressway"].Object, "spec", "podMetricsEndpoints")
				require.NoError(t, err)
				require.Equal(t, "https", endpoints[0].(map[string]any)["scheme"])
				require.Equal(t, map[string]any{"insecureSkipVerify": true}, endpoints[0].(map[string]any)["tlsConfig"])
			},
		},
		{
			"metrics for tokens", `{podMonitor: {enabled: true, authorization: {credentials: {name: prometheus-token, key: token}}}, ` +
				`config: {status: {metricsTLS: {certFile: tls.crt, keyFile: tls.key, tokenReview: true}}}}`,
			func(t *testing.T, o objects, _ corev1.PodSpec) {
				require.True(t, configOf(t, o).Status.MetricsTLS.TokenReview)
				rules, _, err := unstructured.NestedSlice(o["ClusterRole /egressway-metrics-reader"].Object, "rules")
				require.NoError(t, err)
				require.Equal(t, []any{map[string]any{"nonResourceURLs": []any{"/metrics"}, "verbs": []any{"get"}}}, rules)
				endpoints, _, err := unstructured.NestedSlice(o["PodMonitor "+namespace+"/egressway"].Object, "spec", "podMetricsEndpoints")
				require.NoError(t, err)
				require.Equal(t, map[string]any{"credentials": map[string]any{"name": "prometheus-token", "key": "token"}}, endpoints[0].(map[string]any)["authorization"])
				require.Contains(t, granted(t, o), "create tokenreviews.authentication.k8s.io")
				require.Contains(t, granted(t, o), "create subjectaccessreviews.authorization.k8s.io")
			},
		},
		{
			"a longer end and another socket of the daemon", `{terminationGracePeriodSeconds: 90, config: {status: {socket: /run/egressway/s.sock}}}`,
			func(t *testing.T, _ objects, p corev1.PodSpec) {
				require.EqualValues(t, 90, *p.TerminationGracePeriodSeconds)
				require.Contains(t, p.Containers[0].Env, corev1.EnvVar{Name: "EGRESSWAY_STATUS_SOCKET", Value: "/run/egressway/s.sock"})
			},
		},
		{"the speaker may listen on a low port", "config: {bgp: {listenPort: 179}}", func(t *testing.T, o objects, _ corev1.PodSpec) {
			speaker := daemonSet(t, o, "egressway-speaker").Spec.Template.Spec
			require.Contains(t, speaker.Containers[0].SecurityContext.Capabilities.Add, corev1.Capability("NET_BIND_SERVICE"))
		}},
		{"no probes without metrics", `config: {status: {metricsAddress: ""}}`, func(t *testing.T, _ objects, p corev1.PodSpec) {
			require.Empty(t, p.Containers[0].Ports)
			require.Nil(t, p.Containers[0].LivenessProbe)
			require.Nil(t, p.Containers[0].ReadinessProbe)
		}},
		{
			"a metrics address of one's own stays with a PodMonitor", `{podMonitor: {enabled: true, labels: {release: prometheus}}, config: {status: {metricsAddress: "10.0.0.1:9000"}}}`,
			func(t *testing.T, o objects, p corev1.PodSpec) {
				require.Contains(t, p.Containers[0].Env, corev1.EnvVar{Name: "EGRESSWAY_STATUS_METRICSADDRESS", Value: "10.0.0.1:9000"})
				require.Equal(t, "prometheus", o["PodMonitor "+namespace+"/egressway"].GetLabels()["release"])
			},
		},
		{"image", "{image: {repository: registry.example.com/egressway, tag: v9}, imagePullSecrets: [{name: registry}]}", func(t *testing.T, _ objects, p corev1.PodSpec) {
			require.Equal(t, "registry.example.com/egressway:v9", p.Containers[0].Image)
			require.Equal(t, []corev1.LocalObjectReference{{Name: "registry"}}, p.ImagePullSecrets)
		}},
		{"digest", "image: {digest: sha256:" + strings.Repeat("a", 64) + "}", func(t *testing.T, _ objects, p corev1.PodSpec) {
			require.Equal(t, "ghcr.io/egressway/egressway@sha256:"+strings.Repeat("a", 64), p.Containers[0].Image)
		}},
		{
			"nothing optional", "{priorityClassName: '', tolerations: [], nodeSelector: {kubernetes.io/os: null}, resources: {requests: null, limits: null}, config: {networks: null}}",
			func(t *testing.T, _ objects, p corev1.PodSpec) {
				require.Empty(t, p.PriorityClassName)
				require.Empty(t, p.Tolerations)
				require.Empty(t, p.NodeSelector)
				require.Empty(t, p.Containers[0].Resources.Limits)
			},
		},
		{
			"placement", "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: Exists}]}]}}}, updateStrategy: {type: OnDelete, rollingUpdate: null}}",
			func(t *testing.T, o objects, p corev1.PodSpec) {
				require.NotNil(t, p.Affinity.NodeAffinity)
				require.Equal(t, appsv1.OnDeleteDaemonSetStrategyType, daemonSet(t, o, "egressway").Spec.UpdateStrategy.Type)
				require.Nil(t, daemonSet(t, o, "egressway").Spec.UpdateStrategy.RollingUpdate)
			},
		},
		{
			"metadata and volumes of both pods", `{podLabels: {team: network}, podAnnotations: {backup: none, kubectl.kubernetes.io/default-container: x},
				extraEnv: [{name: GOMEMLIMIT, value: 400MiB}, {name: EGRESSWAY_BGP_ROUTERID, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}],
				extraVolumes: [{name: more, secret: {secretName: more}}], extraVolumeMounts: [{name: more, mountPath: /etc/more, readOnly: true}]}`,
			func(t *testing.T, o objects, _ corev1.PodSpec) {
				for name, volumes := range map[string]int{"egressway": 3, "egressway-speaker": 3} {
					set := daemonSet(t, o, name)
					require.Equal(t, map[string]string{"app.kubernetes.io/name": name, "team": "network"}, set.Spec.Template.Labels)
					require.Equal(t, map[string]string{"app.kubernetes.io/name": name}, set.Spec.Selector.MatchLabels)
					require.Equal(t, map[string]string{"backup": "none", "kubectl.kubernetes.io/default-container": "x"}, set.Spec.Template.Annotations)
					c := set.Spec.Template.Spec.Containers[0]
					require.Contains(t, c.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: "400MiB"})
					require.Equal(t, "status.hostIP", c.Env[len(c.Env)-1].ValueFrom.FieldRef.FieldPath)
					require.Contains(t, c.VolumeMounts, corev1.VolumeMount{Name: "more", MountPath: "/etc/more", ReadOnly: true})
					require.Len(t, set.Spec.Template.Spec.Volumes, volumes)
					require.Equal(t, "more", set.Spec.Template.Spec.Volumes[volumes-1].Secret.SecretName)
				}
			},
		},
		{"annotations of the ServiceAccount", "serviceAccount: {annotations: {a: b}}", func(t *testing.T, o objects, _ corev1.PodSpec) {
			require.Equal(t, map[string]string{"a": "b"}, o["ServiceAccount "+namespace+"/egressway"].GetAnnotations())
		}},
		{
			"dashboard", "dashboard: {enabled: true, labels: {grafana_dashboard: null, dashboards: mine}, annotations: {grafana_folder: Network}, namespace: monitoring}",
			func(t *testing.T, o objects, _ corev1.PodSpec) {
				m := o["ConfigMap monitoring/egressway-dashboard"]
				require.NotNil(t, m)
				require.Equal(t, "mine", m.GetLabels()["dashboards"])
				require.NotContains(t, m.GetLabels(), "grafana_dashboard")
				require.Equal(t, map[string]string{"grafana_folder": "Network"}, m.GetAnnotations())
			},
		},
		{
			"values of a chart without the newer ones as of helm upgrade --reuse-values",
			"{nameOverride: null, aggregateRoles: null, admissionPolicy: null, podLabels: null, podAnnotations: null, extraEnv: null, extraVolumes: null, extraVolumeMounts: null, serviceAccount: null, dashboard: null, prometheusRule: {enabled: true, alerts: null}}",
			func(t *testing.T, o objects, _ corev1.PodSpec) {
				want := rendered(t, "prometheusRule: {enabled: true}")
				require.Equal(t, want, o)
			},
		},
		{"another Secret", "passwordSecret: bgp", func(t *testing.T, _ objects, p corev1.PodSpec) {
			require.Equal(t, "bgp", p.Volumes[0].Projected.Sources[1].Secret.Name)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := rendered(t, c.values)
			c.check(t, o, daemonSet(t, o, "egressway").Spec.Template.Spec)
		})
	}
}

// TestLabels gives objects a label that the chart has too, and a release a name that is a number in YAML: no key is there twice, and every
// label is a string.
func TestLabels(t *testing.T) {
	const more = "{enabled: true, labels: {app.kubernetes.io/instance: prometheus, team: network}}"
	out := run(t, "helm", "template", "123", chart, "--namespace", namespace, "--values", file(t, fmt.Sprintf("{podMonitor: %s, prometheusRule: %s, dashboard: %s}", more, more, more)))
	for document := range strings.SplitSeq(string(out), "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct {
				Name   string
				Labels map[string]string
			}
		}
		require.NoError(t, k8syaml.UnmarshalStrict([]byte(document), &map[string]any{}), document)
		require.NoError(t, k8syaml.Unmarshal([]byte(document), &o), document)
		if slices.Contains([]string{"PodMonitor", "PrometheusRule"}, o.Kind) || o.Metadata.Name == "egressway-dashboard" {
			require.Equal(t, "prometheus", o.Metadata.Labels["app.kubernetes.io/instance"])
			require.Equal(t, "network", o.Metadata.Labels["team"])
			require.Equal(t, "egressway", o.Metadata.Labels["app.kubernetes.io/name"])
		} else {
			require.Equal(t, "123", o.Metadata.Labels["app.kubernetes.io/instance"], document)
		}
	}
}

// TestNameOverride checks that all objects have the name, and refer to each other by it.
func TestNameOverride(t *testing.T) {
	o := rendered(t, "{nameOverride: egw, podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}")
	for key := range o {
		require.NotRegexp(t, "/egressway(-(config|speaker|dashboard|view|edit))?$", key)
	}
	p := daemonSet(t, o, "egw").Spec.Template.Spec
	require.Equal(t, "egw", p.ServiceAccountName)
	require.Equal(t, "egw-config", p.Volumes[0].Projected.Sources[0].ConfigMap.Name)
	for _, binding := range []string{"ClusterRoleBinding /egw", "RoleBinding " + namespace + "/egw"} {
		role, _, err := unstructured.NestedString(o[binding].Object, "roleRef", "name")
		require.NoError(t, err)
		subjects, _, err := unstructured.NestedSlice(o[binding].Object, "subjects")
		require.NoError(t, err)
		require.Equal(t, []string{"egw", "egw"}, []string{role, fmt.Sprint(subjects[0].(map[string]any)["name"])}, binding)
	}
	require.Contains(t, o, "ServiceAccount "+namespace+"/egw")
	require.Equal(t, map[string]string{"app.kubernetes.io/name": "egressway-speaker"}, daemonSet(t, o, "egw-speaker").Spec.Selector.MatchLabels)
	require.Equal(t, `up{job=~".*egw.*"} == 0`, alertOf(t, o["PrometheusRule "+namespace+"/egw"], "EgresswayDown").Expr)
}

// TestBadValues finds that values which would have no effect, or break the daemon, are refused by name.
func TestBadValues(t *testing.T) {
	for values, named := range map[string]string{
		"labelhosts: true":                                          "labelhosts",
		"aggregateRoles: maybe":                                     "aggregateRoles",
		"labelHosts: yes please":                                    "labelHosts",
		"image: {digest: abc}":                                      "digest",
		"image: {pullPolicy: Sometimes}":                            "pullPolicy",
		"podMonitor: {enabled: true, interval: half a minute}":      "interval",
		"config: {status: {metricsAddress: 9479}}":                  "metricsAddress",
		"config: {status: {socket: /tmp/sock}}":                     "socket",
		"config: {speaker: {socket: /tmp/sock}}":                    "socket",
		"speaker: {updateStrategy: {type: RollingUpdate}}":          "updateStrategy",
		"config: {networks: [{vrf: vrf-red}]}":                      "name",
		"config: []":                                                "config",
		"nameOverride: Egress_way":                                  "nameOverride",
		"nameOverride: " + strings.Repeat("a", 51):                  "nameOverride",
		"podLabels: {app.kubernetes.io/name: x}":                    "app.kubernetes.io/name",
		"podLabels: {a: 1}":                                         "podLabels",
		"podAnnotations: [a]":                                       "podAnnotations",
		"extraEnv: {a: b}":                                          "extraEnv",
		"extraEnv: [{name: EGRESSWAY_SPEAKER_START, value: x}]":     "extraEnv",
		"extraEnv: [{name: EGRESSWAY_STATUS_SOCKET, value: x}]":     "extraEnv",
		"extraEnv: [{name: NODE_NAME, value: x}]":                   "extraEnv",
		"extraEnv: [{name: EGRESSWAY_BGP_LISTENPORT, value: x}]":    "extraEnv",
		"extraEnv: [{name: EGRESSWAY_KINDS_EGRESSIP, value: x}]":    "extraEnv",
		"extraEnv: [{name: EGRESSWAY_ALLOWUNLISTED, value: x}]":     "extraEnv",
		"extraEnv: [{name: EGRESSWAY_SOURCE_MANIFESTS, value: x}]":  "extraEnv",
		"config: {source: {kubernetes: {namespace: other}}}":        "config.source.kubernetes.namespace: other",
		"config: {source: {kubernetes: {labelHosts: maybe}}}":       "labelHosts",
		"extraEnv: [{name: A, value: 1}]":                           "extraEnv",
		"extraVolumes: [{name: config, emptyDir: {}}]":              "extraVolumes",
		"extraVolumeMounts: [{name: a, mountPath: /run/egressway}]": "extraVolumeMounts",
		"admissionPolicy: {validationActions: [Refuse]}":            "validationActions",
		"admissionPolicy: {enabled: true}\nconfig: {networks: [{name: a, namespaces: {matchExpressions: [{key: a, operator: in}]}}]}": "operator in: must be In",
		"serviceAccount: {create: false}": "create",
		"dashboard: {enabled: 1}":         "dashboard",
		"prometheusRule:\n  enabled: true\n  alerts: {EgresswayProblem: {for: 1h}}":   "there is no alert EgresswayProblem",
		"prometheusRule:\n  enabled: true\n  alerts: {EgresswayDown: {threshold: 1}}": "EgresswayDown.threshold: this alert has none",
		"prometheusRule: {alerts: {EgresswayProblems: {for: long}}}":                  "EgresswayProblems/for",
		"prometheusRule: {alerts: {EgresswayProblems: {level: info}}}":                "level",
	} {
		t.Run("values", func(t *testing.T) { // the error has the test's name: it is in the path of the file
			t.Parallel()
			_, err := try(t, "helm", "template", "egressway", chart, "--values", file(t, values))
			require.ErrorContains(t, err, named, values)
		})
	}
}

// TestDocumentedValues compares the chart's values with its README and its schema.
func TestDocumentedValues(t *testing.T) {
	readme, err := os.ReadFile(chart + "/README.md")
	require.NoError(t, err)
	var values map[string]any
	b, err := os.ReadFile(chart + "/values.yaml")
	require.NoError(t, err)
	require.NoError(t, k8syaml.UnmarshalStrict(b, &values))
	var schema struct{ Properties map[string]any }
	b, err = os.ReadFile(chart + "/values.schema.json")
	require.NoError(t, err)
	require.NoError(t, k8syaml.Unmarshal(b, &schema))
	for key, value := range values {
		require.Contains(t, schema.Properties, key)
		names := []string{key}
		if inner, ok := value.(map[string]any); ok && slices.Contains([]string{"image", "podMonitor", "prometheusRule", "speaker", "dashboard", "serviceAccount", "admissionPolicy"}, key) {
			names = nil
			for k := range inner {
				names = append(names, key+"."+k)
			}
		}
		for _, name := range names {
			require.Contains(t, string(readme), "| `"+name+"` |")
		}
	}
}

// TestSpeakerIsReplacedByHand finds, at values that change the speaker's pod and its work, that the pod is to be deleted.
func TestSpeakerIsReplacedByHand(t *testing.T) {
	readme, err := os.ReadFile(chart + "/README.md")
	require.NoError(t, err)
	former := daemonSet(t, rendered(t, ""), "egressway-speaker").Spec.Template
	for value, changed := range map[string]string{
		"passwordSecret": "passwordSecret: bgp", "config": "config: {bgp: {listenPort: 179}}", "extraEnv": "extraEnv: [{name: GOMEMLIMIT, value: 400MiB}]",
		"extraVolumes": "extraVolumes: [{name: more, emptyDir: {}}]",
	} {
		require.NotEqual(t, former, daemonSet(t, rendered(t, changed), "egressway-speaker").Spec.Template, value)
		require.Regexp(t, "(?m)^\\| `"+value+"` \\|.*delete the speaker's pods", string(readme))
	}
}

// rulesOf returns the rules of a ClusterRole.
func rulesOf(t *testing.T, o objects, name string) []any {
	t.Helper()
	require.Contains(t, o, "ClusterRole /"+name)
	rules, _, err := unstructured.NestedSlice(o["ClusterRole /"+name].Object, "rules")
	require.NoError(t, err)
	return rules
}

// TestOneMeaningOfLabelHosts compares the objects of the value labelHosts with those of the configuration's key.
func TestOneMeaningOfLabelHosts(t *testing.T) {
	const policy = "\nadmissionPolicy: {enabled: true}"
	value, key := rendered(t, "labelHosts: true"+policy), rendered(t, "config: {source: {kubernetes: {labelHosts: true}}}"+policy)
	require.Contains(t, granted(t, key), "patch nodes")
	for _, o := range []objects{value, key} {
		delete(o["ConfigMap "+namespace+"/egressway-config"].Object, "data")
	}
	require.Equal(t, value, key)
	require.NotContains(t, granted(t, rendered(t, "config: {source: {kubernetes: null}}")), "patch nodes")
	require.NotContains(t, granted(t, rendered(t, "config: {source: {kubernetes: {namespace: "+namespace+"}}}")), "patch nodes")
}

// TestPodsRight finds that the daemon may list Pods unless nothing in the configuration needs them.
func TestPodsRight(t *testing.T) {
	with, without := rulesOf(t, rendered(t, ""), "egressway"), rulesOf(t, rendered(t, "config: {kinds: {egressQoS: off, egressFirewall: off, egressIP: off}}"), "egressway")
	require.NotContains(t, fmt.Sprint(without), "pods")
	require.Contains(t, fmt.Sprint(with), "pods")
	require.Len(t, with, len(without)+1)
	require.Equal(t, without, rulesOf(t, rendered(t, `config: {hold: [], kinds: {egressQoS: "off", egressFirewall: "off", egressIP: "off"}}`), "egressway"))
	require.Equal(t, with, rulesOf(t, rendered(t, "config: {hold: [{pods: {}}], kinds: {egressQoS: off, egressFirewall: off, egressIP: off}}"), "egressway"))
	for _, kind := range []string{"egressQoS", "egressFirewall", "egressIP"} {
		require.Equal(t, with, rulesOf(t, rendered(t, "config: {kinds: {"+kind+": off}}"), "egressway"), "the other kind needs it")
	}
	require.ElementsMatch(t, with, rulesOf(t, built(t, base), "egressway"))
}

// TestAggregatedRoles finds that Kubernetes' roles for users get no more than reading and writing EgressServices.
func TestAggregatedRoles(t *testing.T) {
	const to = "rbac.authorization.k8s.io/aggregate-to-"
	rule := func(resources, verbs []any) []any {
		return []any{map[string]any{"apiGroups": []any{"k8s.ovn.org"}, "resources": resources, "verbs": verbs}}
	}
	for _, o := range []objects{rendered(t, ""), built(t, base)} {
		require.Equal(t, rule([]any{
			"egressservices", "egressservices/status", "egressqoses", "egressqoses/status", "egressfirewalls", "egressfirewalls/status",
		}, []any{"get", "list", "watch"}), rulesOf(t, o, "egressway-view"))
		require.Equal(t, rule([]any{"egressservices", "egressqoses", "egressfirewalls"}, []any{"create", "update", "patch", "delete", "deletecollection"}), rulesOf(t, o, "egressway-edit"))
		for role, in := range map[string][]string{"view": {"view", "edit", "admin"}, "edit": {"edit", "admin"}} {
			var roles []string
			for label, value := range o["ClusterRole /egressway-"+role].GetLabels() {
				if name, ok := strings.CutPrefix(label, to); ok {
					require.Equal(t, "true", value)
					roles = append(roles, name)
				}
			}
			require.ElementsMatch(t, in, roles)
		}
	}
	o := rendered(t, "aggregateRoles: false")
	require.NotContains(t, o, "ClusterRole /egressway-view")
	require.NotContains(t, o, "ClusterRole /egressway-edit")
}

// granted returns the daemon's rights in rendered objects, as "verb resource.group", by its ClusterRole and its Role.
func granted(t *testing.T, o objects) sets.Set[string] {
	t.Helper()
	all := sets.New[string]()
	for _, role := range []string{"ClusterRole /egressway", "Role " + namespace + "/egressway"} {
		require.Contains(t, o, role)
		rules, _, err := unstructured.NestedSlice(o[role].Object, "rules")
		require.NoError(t, err)
		for _, r := range rules {
			rule, ok := r.(map[string]any)
			require.True(t, ok)
			groups, _, _ := unstructured.NestedStringSlice(rule, "apiGroups")
			resources, _, _ := unstructured.NestedStringSlice(rule, "resources")
			verbs, _, _ := unstructured.NestedStringSlice(rule, "verbs")
			require.Len(t, groups, 1)
			for _, resource := range resources {
				for _, verb := range verbs {
					all.Insert(verb + " " + strings.TrimSuffix(resource+"."+groups[0], "."))
				}
			}
		}
	}
	return all
}

// TestRightsAreExplained compares the daemon's rights with the table of docs/kubernetes.md, with and without the options that need more.
func TestRightsAreExplained(t *testing.T) {
	page, err := os.ReadFile("../docs/kubernetes.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Rights\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	always, ever := sets.New[string](), sets.New[string]()
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 4 || !strings.HasPrefix(cells[0], "`") {
			continue
		}
		require.Regexp(t, "^(always|unless|with) ?", cells[2])
		for resource := range strings.SplitSeq(cells[0], ", ") {
			for verb := range strings.SplitSeq(cells[1], ", ") {
				right := verb + " " + strings.Trim(resource, "`")
				if ever.Insert(right); !strings.HasPrefix(cells[2], "with ") {
					always.Insert(right)
				}
			}
		}
	}
	require.Equal(t, sets.List(granted(t, rendered(t, ""))), sets.List(always))
	require.Equal(t, sets.List(granted(t, built(t, base))), sets.List(always))
	more := "{labelHosts: true, config: {status: {metricsTLS: {certFile: /tls/tls.crt, keyFile: /tls/tls.key, tokenReview: true}}}}"
	require.Equal(t, sets.List(granted(t, rendered(t, more))), sets.List(ever))
}

// TestRoles compares the daemon's rights in chart and base, and limits those on Nodes.
func TestRoles(t *testing.T) {
	for _, labels := range []bool{false, true} {
		var components []string
		if labels {
			components = []string{"host-label"}
		}
		verbs := sets.New[string]()
		for _, r := range rulesOf(t, built(t, overlay(t, components...)), "egressway") {
			rule, ok := r.(map[string]any)
			require.True(t, ok)
			resources, _, _ := unstructured.NestedStringSlice(rule, "resources")
			of, _, _ := unstructured.NestedStringSlice(rule, "verbs")
			require.NotContains(t, of, "*")
			require.NotContains(t, resources, "*")
			if slices.Contains(resources, "nodes") {
				verbs.Insert(of...)
			}
		}
		require.Equal(t, labels, verbs.Has("patch"))
	}
}
