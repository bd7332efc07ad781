//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpu-dra/driver/test/cluster"
	"github.com/gpu-dra/driver/test/cluster/internal/progress"
)

const smokeDriver = "smoke.example.com"

// smokeName starts the names of this test's clusters.
const smokeName = "smoke"

// newCluster returns a cluster with a state folder of the test's own; it must be built.
func newCluster(t *testing.T, root, name string) (*cluster.Cluster, cluster.Config) {
	t.Helper()
	config, err := cluster.FromEnvironment(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	config.Name, config.StateRoot = name, root
	c, err := cluster.New(config, progress.New(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	return c, config
}

// TestCluster proves the promises of this package on this machine. It needs root and the
// programs that `cluster build` makes.
func TestCluster(t *testing.T) {
	ctx := t.Context()
	root, err := os.MkdirTemp("/var/tmp", "k")
	must(t, err)
	before, alone := machine(t, root)
	first, config := newCluster(t, root, smokeName+"1")
	second, _ := newCluster(t, root, smokeName+"2")
	t.Cleanup(func() {
		// Without the test's context, which has ended by now.
		for _, c := range []*cluster.Cluster{first, second} {
			if t.Failed() {
				_ = c.Dump(context.Background(), filepath.Join(os.TempDir(), "cluster-dump"))
			}
			if err := c.Reset(context.Background()); err != nil {
				t.Error(err)
			}
		}
		after, stillAlone := machine(t, root)
		if !alone || !stillAlone {
			t.Log("another cluster runs: kernel settings and shared folders were not compared")
			before, after = common(before, after)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("the machine is not as it was (-before +after):\n%s", diff)
		}
	})

	killedRuns(t, config)
	began := time.Now()
	must(t, first.Up(ctx))
	t.Logf("up after killed runs: %s", time.Since(began).Round(100*time.Millisecond))
	pids := components(t, first)
	must(t, first.Up(ctx))
	if diff := cmp.Diff(pids, components(t, first)); diff != "" {
		t.Errorf("a second up restarted components (-before +after):\n%s", diff)
	}
	must(t, second.Up(ctx))

	client, err := first.Client()
	must(t, err)
	startSmokeDriver(t, first, client)
	runClaimPod(t, client)

	must(t, first.Stop(ctx, "kubelet-0", syscall.SIGKILL))
	must(t, first.Up(ctx))
	pod, err := client.CoreV1().Pods("default").Get(ctx, "claim", metav1.GetOptions{})
	must(t, err)
	if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the pod restarted %d times with the kubelet", n)
	}
	must(t, first.Down(ctx))
	other, err := second.Client()
	must(t, err)
	if _, err := other.CoreV1().Nodes().Get(ctx, cluster.NodeName(0), metav1.GetOptions{}); err != nil {
		t.Errorf("taking one cluster down hurt the other: %v", err)
	}
}

// common drops what only one of two lists of the machine has.
func common(a, b map[string][]string) (map[string][]string, map[string][]string) {
	for key := range a {
		if _, ok := b[key]; !ok {
			delete(a, key)
		}
	}
	for key := range b {
		if _, ok := a[key]; !ok {
			delete(b, key)
		}
	}
	return a, b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// killedRuns starts the command and kills it at several moments: nothing that it leaves
// may hinder the next run.
func killedRuns(t *testing.T, config cluster.Config) {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "cluster")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", tool, "./cmd/cluster").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, after := range []time.Duration{200 * time.Millisecond, time.Second, 3500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		cmd := exec.CommandContext(ctx, tool, "up", "--name", config.Name, "--state-root", config.StateRoot, "--bin", config.Bin)
		err := cmd.Run() // killed by SIGKILL when the time is over
		cancel()
		t.Logf("run killed after %s: %v", after, err)
	}
}

func components(t *testing.T, c *cluster.Cluster) map[string]int {
	t.Helper()
	list, err := c.Status()
	must(t, err)
	pids := map[string]int{}
	for _, p := range list {
		pids[p.Name] = p.PID
	}
	return pids
}

// driver is the smallest DRA driver: one device, a character device that is /dev/null.
type driver struct{}

func (driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var r kubeletplugin.PrepareResult
		for _, a := range c.Status.Allocation.Devices.Results {
			r.Devices = append(r.Devices, kubeletplugin.Device{
				Requests: []string{a.Request}, PoolName: a.Pool, DeviceName: a.Device, CDIDeviceIDs: []string{smokeDriver + "/dev=" + a.Device},
			})
		}
		results[c.UID] = r
	}
	return results, nil
}

func (driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		results[c.UID] = nil
	}
	return results, nil
}

func (driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (driver) HandleError(context.Context, error, string) {}

// startSmokeDriver runs the driver in this process. It works outside of the node: paths of
// the machine are good on the node, too.
func startSmokeDriver(t *testing.T, c *cluster.Cluster, client kubernetes.Interface) {
	t.Helper()
	device := filepath.Join(t.TempDir(), "null")
	must(t, syscall.Mknod(device, syscall.S_IFCHR|0o666, 1<<8|3))
	spec, err := json.Marshal(map[string]any{
		"cdiVersion": "0.6.0", "kind": smokeDriver + "/dev",
		"devices": []any{map[string]any{"name": "dev-0", "containerEdits": map[string]any{
			"env": []string{"SMOKE=dev-0"},
			"deviceNodes": []any{map[string]any{
				"path": "/dev/smoke", "hostPath": device, "type": "c", "major": 1, "minor": 3, "permissions": "rw",
			}},
		}}},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.CDIDir(0), "smoke.json"), spec, 0o644))
	data := filepath.Join(c.KubeletRoot(0), "plugins", smokeDriver)
	must(t, os.MkdirAll(data, 0o755))
	helper, err := kubeletplugin.Start(t.Context(), driver{},
		kubeletplugin.DriverName(smokeDriver), kubeletplugin.NodeName(cluster.NodeName(0)), kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(c.KubeletRoot(0), "plugins_registry")))
	must(t, err)
	t.Cleanup(helper.Stop)
	slices := []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "dev-0"}}}}
	must(t, helper.PublishResources(t.Context(), resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{cluster.NodeName(0): {Slices: slices}},
	}))
}

// runClaimPod runs a pod with a claim, which must see and be able to open its device.
func runClaimPod(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	_, err := client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "smoke"},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", smokeDriver)},
		}}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.ResourceV1().ResourceClaims("default").Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "smoke"},
		}}}},
	}, metav1.CreateOptions{})
	must(t, err)
	claim := "one"
	_, err = client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "dev", ResourceClaimName: &claim}},
			Containers: []corev1.Container{{
				Name: "c", Image: cluster.WorkloadImage,
				Command:   []string{"sh", "-c", "echo x >/dev/smoke && echo wrote $SMOKE; trap 'exit 0' TERM; sleep 86400 & wait"},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "dev"}}},
			}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	var last string
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		stream, err := client.CoreV1().Pods("default").GetLogs("claim", &corev1.PodLogOptions{}).Stream(ctx)
		if err == nil {
			var raw []byte
			raw, err = io.ReadAll(stream)
			last = string(raw)
		}
		if err != nil { // not running yet
			last = err.Error()
		}
		return strings.Contains(last, "wrote dev-0"), nil
	})
	if err != nil {
		t.Fatalf("the pod did not write to its device: %v; last: %s", err, last)
	}
}
