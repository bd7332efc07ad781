package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"

	"github.com/gpu-dra/driver/test/gpusim"
	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/kubelet"
	"github.com/gpu-dra/driver/test/scheduler"
)

const (
	// Driver is the plugin's driver name.
	Driver = "gpu.nvidia.com"
	// NodeName is the name of the bed's node, and of its pool.
	NodeName = "node-1"
	// Class is the DeviceClass of whole GPUs.
	Class = "gpu.nvidia.com"
	// APIUser is the plugin's user in the request log of the API server.
	APIUser = "plugin"
)

// patience bounds every wait for something that comes within a second on an idle machine.
const patience = 60 * time.Second

// Bed is what the plugin lives in.
type Bed struct {
	t testing.TB
	// Node is the hardware.
	Node *gpusim.Node
	// API is the API server, Client a client of the test's own.
	API       *kubeapi.Server
	Client    kubernetes.Interface
	Scheduler *scheduler.Scheduler
	// Kubelet is the one that runs now.
	Kubelet *kubelet.Kubelet
	// podUID is that of the plugin's pod: a container that is started again keeps it.
	podUID string
	dir    string
}

// New makes a bed with the hardware of a preset, an API server that has the node and the class,
// and a running kubelet. All of it ends with the test.
func New(t testing.TB, preset string, options ...gpusim.Option) *Bed {
	t.Helper()
	return NewOn(t, gpusim.New(t, preset, options...))
}

// NewOn is New with hardware that is there.
func NewOn(t testing.TB, node *gpusim.Node) *Bed {
	t.Helper()
	api, err := kubeapi.Start(kubeapi.Options{})
	check(t, err)
	t.Cleanup(func() { _ = api.Close() })
	// Not t.TempDir: the paths of sockets must be short.
	dir, err := os.MkdirTemp("", "p")
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &Bed{t: t, Node: node, API: api, podUID: string(uuid.NewUUID()), dir: dir}
	b.Client, err = api.Client("test")
	check(t, err)
	b.Scheduler = scheduler.New(b.Client)
	for _, sub := range []string{b.RegistryDir(), b.pluginsDir(), b.CDIDir()} {
		check(t, os.MkdirAll(sub, 0o755))
	}
	check(t, os.WriteFile(b.hook(), []byte("#!/bin/sh\n"), 0o755))
	check(t, api.WriteKubeconfig(b.kubeconfig(), APIUser))
	check(t, api.Put(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName, UID: "node-uid"}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: Class}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
				"device.driver == %q && device.attributes[%q].?type.orValue(\"\") == \"gpu\"", Driver, Driver)}}},
		}},
	))
	b.StartKubelet(nil)
	t.Cleanup(func() { b.Kubelet.Stop() })
	return b
}

// StartKubelet starts a kubelet, with what an earlier one left.
func (b *Bed) StartKubelet(state *kubelet.State) {
	b.t.Helper()
	k, err := kubelet.Start(context.Background(), kubelet.Options{
		NodeName: NodeName, RegistryDir: b.RegistryDir(), Client: b.Client, State: state,
	})
	check(b.t, err)
	b.Kubelet = k
}

// RegistryDir is where the kubelet looks for plugins.
func (b *Bed) RegistryDir() string { return filepath.Join(b.dir, "r") }
func (b *Bed) pluginsDir() string  { return filepath.Join(b.dir, "p") }
func (b *Bed) kubeconfig() string  { return filepath.Join(b.dir, "kubeconfig") }
func (b *Bed) hook() string        { return filepath.Join(b.dir, "nvidia-cdi-hook") }

// DataDir holds the plugin's state and its sockets.
func (b *Bed) DataDir() string { return filepath.Join(b.pluginsDir(), Driver) }

// CDIDir is where the container runtime would look for specs.
func (b *Bed) CDIDir() string { return filepath.Join(b.dir, "cdi") }

// StateDirs are the directories whose content must survive or follow a crash.
func (b *Bed) StateDirs() []string { return []string{b.DataDir(), b.CDIDir()} }

// Device is the name of the i-th GPU in PCI order.
func (b *Bed) Device(i int) string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(b.Node.Spec().GPUs[i].PCI.String())
}

// Context ends with the test, or when its patience does.
func (b *Bed) Context() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	b.t.Cleanup(cancel)
	return ctx
}

// Eventually waits until ok is nil. It asks again every few milliseconds, as people look at
// things that tell nobody when they change.
func (b *Bed) Eventually(what string, ok func() error) {
	b.t.Helper()
	b.within(patience, what, ok)
}

func (b *Bed) within(limit time.Duration, what string, ok func() error) {
	b.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		select {
		case <-b.t.Context().Done():
			b.t.Fatalf("%s: %v", what, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
