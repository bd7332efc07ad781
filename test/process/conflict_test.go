package process_test

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/test/kubeapi"
	"github.com/gpu-dra/driver/test/process"
)

// putNode has the API server's Node say so.
func putNode(t *testing.T, b *process.Bed, change func(*corev1.Node)) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: process.NodeName, UID: "node-uid"}}
	change(n)
	must(t, b.API.Put(n))
}

// owned waits until all n devices have the taint of a second owner of that kind, or no taint for "", and
// the page of readiness says so.
func owned(t *testing.T, b *process.Bed, p *process.Plugin, n int, kind string) {
	t.Helper()
	b.Eventually("verdict "+kind, func() error {
		devices := pool(t, b)
		if len(devices) != n {
			return fmt.Errorf("published are %v", names(devices))
		}
		for _, d := range devices {
			want := kind == "" && len(d.Taints) == 0 || kind != "" && len(d.Taints) == 1 && d.Taints[0].Key == process.Driver+"/conflict" &&
				d.Taints[0].Value == kind && d.Taints[0].Effect == resourceapi.DeviceTaintEffectNoSchedule
			if !want {
				return fmt.Errorf("%s has taints %v", d.Name, d.Taints)
			}
		}
		code, body, err := p.Get("/readyz")
		if err == nil && (code == http.StatusOK) != (kind == "") {
			err = fmt.Errorf("readyz is %d: %s", code, body)
		}
		return err
	})
}

// unready waits until the plugin is not ready and says why with these words.
func unready(t *testing.T, b *process.Bed, p *process.Plugin, words string) {
	t.Helper()
	b.Eventually("a page that says "+words, func() error {
		code, body, err := p.Get("/readyz")
		if err == nil && (code == http.StatusOK || !strings.Contains(body, words)) {
			err = fmt.Errorf("readyz is %d: %s", code, body)
		}
		return err
	})
}

// A device plugin comes to a node on which a claim is prepared, and goes.
func TestDevicePluginBesideUs(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("rescan-interval", "1s"))
	p.WaitReady()
	before, after := b.Allocated("before", []int{0}), b.Allocated("after", []int{1})
	prepare(t, b, before, 0)
	owned(t, b, p, 4, "")

	putNode(t, b, func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
	})
	owned(t, b, p, 4, "device-plugin")
	refused(t, b, after, "no new claim is prepared on this node", "nvidia.com/gpu: 4", "take it off this node")
	prepare(t, b, before, 0)
	if b.Record(after.UID) {
		t.Error("a claim that was refused has a record")
	}
	// A restart finds it before it takes calls.
	p.Kill()
	p = b.Start(process.Flag("rescan-interval", "1s"))
	refused(t, b, after, "nvidia.com/gpu: 4")
	unprepare(t, b, before)

	putNode(t, b, func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
	})
	owned(t, b, p, 4, "")
	prepare(t, b, after, 1)
	unprepare(t, b, after)
	clean(t, b)
}

// With other policies the same node is served, and told of, or not even that.
func TestDevicePluginThatIsTolerated(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	putNode(t, b, func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
	})
	claim := b.Allocated("claim", []int{0})
	for policy, told := range map[string]bool{"warn": true, "ignore": false} {
		p := b.Start(process.Flag("conflicts", "device-plugin="+policy))
		p.WaitReady()
		owned(t, b, p, 4, "")
		_, body, err := p.Get("/readyz")
		must(t, err)
		if strings.Contains(body, "nvidia.com/gpu: 4") != told {
			t.Errorf("%s: %s", policy, body)
		}
		prepare(t, b, claim, 0)
		unprepare(t, b, claim)
		p.Terminate()
	}
}

// A MIG manager is in the way of a node that makes partitions for claims, and of no other.
func TestMIGManagerBesideUs(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	putNode(t, b, func(n *corev1.Node) { n.Labels = map[string]string{"nvidia.com/mig.config.state": "success"} })
	for mig, kind := range map[string]string{"static": "", "on-demand": "mig-manager"} {
		p := b.Start(process.Flag("mig-devices", mig), process.Flag("rescan-interval", "1s"))
		owned(t, b, p, 4, kind)
		p.Kill()
	}
}

// Another driver of our name has its slices left to it.
func TestAnotherDriverOfOurName(t *testing.T) {
	t.Parallel()
	b := process.New(t, "t4-4")
	p := b.Start(process.Flag("rescan-interval", "1s"))
	p.WaitReady()
	before, after := b.Allocated("before", []int{0}), b.Allocated("after", []int{1})
	prepare(t, b, before, 0)
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(b.RegistryDir(), process.Driver+"-reg.sock"))
	must(t, err)
	t.Cleanup(func() { _ = other.Close() })
	unready(t, b, p, "another DRA driver for GPUs serves this node")
	refused(t, b, after, "another DRA driver for GPUs")
	prepare(t, b, before, 0)
	unprepare(t, b, before)
	// The other driver writes the slices as it likes.
	slices := b.API.Requests(kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Writes: true})
	must(t, b.Client.ResourceV1().ResourceSlices().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	unready(t, b, p, "the ResourceSlices are left to another driver")
	if got := len(b.API.Requests(kubeapi.Match{User: process.APIUser, Resource: "resourceslices", Writes: true})); got != len(slices) {
		t.Errorf("%d writes of slices beside the other driver", got-len(slices))
	}
	must(t, other.Close())
	owned(t, b, p, 4, "")
	prepare(t, b, after, 1)
	unprepare(t, b, after)
	clean(t, b)
}
