package cluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/cluster/internal/pki"
	"github.com/gpu-dra/driver/test/cluster/internal/progress"
)

// testCluster is a cluster in a folder of its own, of which nothing runs.
func testCluster(t *testing.T) (*Cluster, *bytes.Buffer) {
	t.Helper()
	root, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	var said bytes.Buffer
	c, err := New(Config{Name: "t", Bin: filepath.Join(root, "bin"), StateRoot: root, Nodes: 1}, progress.New(&said))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(c.config.State(), 0o755); err != nil {
		t.Fatal(err)
	}
	return c, &said
}

func TestControlPlaneArguments(t *testing.T) {
	store := &pki.Store{Dir: "/p"}
	c := Config{Verbosity: 4, Features: "A=true", APIQPS: 500, RuntimeConfig: "x/v1=true"}
	p := plan{1}
	tests := map[string]struct {
		args []string
		want []string
	}{
		"API server": {c.apiServerArgs(p, store), []string{
			"--v=4", "--feature-gates=A=true", "--runtime-config=x/v1=true", "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", "--advertise-address=198.18.2.2", "--service-cluster-ip-range=198.18.3.0/24",
			"--client-ca-file=/p/ca.crt", "--secure-port=443",
		}},
		"controller manager": {c.controllerManagerArgs(store, "/f"), []string{
			"--kubeconfig=/p/kube-controller-manager.kubeconfig", "--feature-gates=A=true", "--kube-api-qps=500", "--kube-api-burst=1000",
			"--flex-volume-plugin-dir=/f", "--use-service-account-credentials",
		}},
		"scheduler": {c.schedulerArgs(store), []string{"--kubeconfig=/p/kube-scheduler.kubeconfig", "--leader-elect=false"}},
		"etcd":      {etcdArgs("/e"), []string{"--data-dir=/e", "--listen-client-urls=http://127.0.0.1:2379"}},
	}
	for name, tc := range tests {
		for _, want := range tc.want {
			if !slices.Contains(tc.args, want) {
				t.Errorf("%s: no %s in %q", name, want, tc.args)
			}
		}
	}
}

// Figures of pod latency are honest only with Kubernetes' own limits and gates.
func TestControlPlaneLeavesDefaults(t *testing.T) {
	store, c := &pki.Store{Dir: "/p"}, Config{Features: FeaturesDefault}
	all := slices.Concat(c.apiServerArgs(plan{}, store), c.controllerManagerArgs(store, "/f"), c.schedulerArgs(store))
	for _, a := range all {
		for _, not := range []string{"--kube-api-", "--feature-gates", "--runtime-config", "--concurrent-", "--max-requests"} {
			if strings.HasPrefix(a, not) {
				t.Errorf("%s is set", a)
			}
		}
	}
}

func TestCertificates(t *testing.T) {
	c, _ := testCluster(t)
	store, err := c.certificates(plan{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"admin.kubeconfig", "kube-scheduler.kubeconfig", "kube-controller-manager.kubeconfig", "apiserver.crt", "sa.pub"} {
		if _, err := os.Stat(store.Path(name)); err != nil {
			t.Error(err)
		}
	}
	config, err := c.RESTConfig()
	if err != nil || config.Host != "https://198.18.0.2" {
		t.Errorf("client configuration: %v, %v", config, err)
	}
	if _, err := c.Client(); err != nil {
		t.Error(err)
	}
}

func TestWhatNeedsAClusterSaysSo(t *testing.T) {
	c, said := testCluster(t)
	if _, err := c.Client(); !errors.Is(err, ErrNotUp) {
		t.Errorf("Client: %v", err)
	}
	if _, err := c.Command(t.Context(), "true"); !errors.Is(err, ErrNotUp) {
		t.Errorf("Command: %v", err)
	}
	if _, err := c.NodeCommand(t.Context(), 0, "true"); !errors.Is(err, ErrNotUp) {
		t.Errorf("NodeCommand: %v", err)
	}
	if err := c.AddNode(t.Context(), 1); !errors.Is(err, ErrNotUp) {
		t.Errorf("AddNode: %v", err)
	}
	if err := c.AddNode(t.Context(), maxNodes); !errors.Is(err, ErrConfig) {
		t.Errorf("AddNode with a bad number: %v", err)
	}
	if err := c.Up(t.Context()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "build") {
		t.Errorf("Up without programs: %v", err)
	}
	if got, err := c.Status(); err != nil || len(got) != 0 {
		t.Errorf("Status: %v, %v", got, err)
	}
	if err := os.RemoveAll(c.config.State()); err != nil {
		t.Fatal(err)
	}
	if err := c.Down(t.Context()); err != nil || !strings.Contains(said.String(), "nothing to take down") {
		t.Errorf("Down of nothing: %v, said %q", err, said)
	}
}

func TestCommandEntersTheClustersNetwork(t *testing.T) {
	c, _ := testCluster(t)
	if err := os.WriteFile(slotFile(c.config.State()), []byte("3"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd, err := c.Command(t.Context(), "curl", "x")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"nsenter", "--net=" + c.path("netns"), "--", "curl", "x"}
	if diff := cmp.Diff(want, cmd.Args); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(cmd.Env, "KUBECONFIG="+c.Kubeconfig()) {
		t.Error("KUBECONFIG is not set")
	}
	ctr := c.Ctr(t.Context(), 0, "images", "ls")
	if got := strings.Join(ctr.Args, " "); !strings.HasSuffix(got, "/n0/containerd.sock -n k8s.io images ls") {
		t.Errorf("ctr is %q", got)
	}
}

func TestWantedNodesKnowsEarlierOnes(t *testing.T) {
	c, _ := testCluster(t)
	if err := os.Mkdir(c.nodePath(2), 0o755); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{0, 2}, c.wantedNodes()); diff != "" {
		t.Error(diff)
	}
}

func TestMountTargets(t *testing.T) {
	c, _ := testCluster(t)
	c.config.Binds = []Bind{{-1, "/a", "/sys/class/x"}}
	got := c.mountTargets()
	for _, want := range []string{"/var/lib/kubelet", "/var/run/cdi", "/etc/cdi", "/sys/class/x"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
}

func TestReadiness(t *testing.T) {
	start := time.Date(2026, 1, 1, 10, 0, 0, 500_000_000, time.UTC)
	node := func(status corev1.ConditionStatus, heartbeat time.Time) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeReady, Status: status, Reason: "Why", LastHeartbeatTime: metav1.NewTime(heartbeat)},
		}}}
	}
	tests := map[string]struct {
		node  *corev1.Node
		ready bool
	}{
		"ready":                      {node(corev1.ConditionTrue, start.Add(time.Minute)), true},
		"in the second of the start": {node(corev1.ConditionTrue, start.Truncate(time.Second)), true},
		"word of the kubelet before": {node(corev1.ConditionTrue, start.Add(-time.Minute)), false},
		"not ready":                  {node(corev1.ConditionFalse, start.Add(time.Minute)), false},
		"unknown":                    {node(corev1.ConditionUnknown, start.Add(time.Minute)), false},
		"no condition":               {&corev1.Node{}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := readiness(tc.node, start); (err == nil) != tc.ready || err != nil && !errors.Is(err, errNotReady) {
				t.Errorf("got %v, want ready: %v", err, tc.ready)
			}
		})
	}
}

func TestKeepAndChecksum(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := os.WriteFile(from, []byte("abc"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := keep(from, to); err != nil {
		t.Fatal(err)
	}
	sum, err := checksum(to)
	// The SHA-256 of "abc", from FIPS 180-2.
	if want := "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; err != nil || sum != want {
		t.Errorf("got %s, %v", sum, err)
	}
	if err := keep(filepath.Join(dir, "none"), to); err == nil {
		t.Error("no error for a missing archive")
	}
}

func TestLogsAndDump(t *testing.T) {
	c, _ := testCluster(t)
	if err := os.MkdirAll(c.config.LogDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.LogFile("etcd"), []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	names, err := c.Logs()
	if err != nil || len(names) != 1 || names[0] != "etcd" {
		t.Errorf("logs: %v, %v", names, err)
	}
	dir := filepath.Join(t.TempDir(), "dump")
	// No API server answers: the logs are there all the same, and the rest is reported.
	if err := c.Dump(t.Context(), dir); err == nil {
		t.Error("objects that could not be read were not reported")
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "etcd.log")); err != nil || string(raw) != "hello" {
		t.Errorf("got %q, %v", raw, err)
	}
}

func TestLockLetsOneIn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d/lock")
	unlock, err := lock(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
	defer cancel()
	if _, err := lock(short, file); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), file) {
		t.Errorf("a second holder got %v", err)
	}
	unlock()
	unlock, err = lock(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestEnvironmentNamesRealPaths(t *testing.T) {
	c, _ := testCluster(t)
	got := map[string]string{}
	for _, pair := range c.Environment() {
		got[pair[0]] = pair[1]
	}
	want := map[string]string{
		"KUBECONFIG": c.path("pki/admin.kubeconfig"), "CLUSTER_NAME": "t", "CLUSTER_NODE": "node-0",
		"CLUSTER_KUBELET_ROOT": c.path("n0/kubelet"), "CLUSTER_CDI_DIR": c.path("n0/cdi"),
	}
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s is %q, want %q", key, got[key], value)
		}
	}
}

func TestMissingPackagesOnThisMachine(t *testing.T) {
	// With nothing in the PATH everything is missing, each package once.
	t.Setenv("PATH", t.TempDir())
	got := MissingPackages(t.Context())
	if !slices.Contains(got, "gcc") || !slices.Contains(got, "libseccomp-dev") || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("got %q", got)
	}
	c, _ := testCluster(t)
	if err := c.Preflight(t.Context()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("got %v", err)
	}
}
