package care

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpu-dra/driver/pkg/agent/ground"
	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/config"
	"github.com/gpu-dra/driver/pkg/journal"
	"github.com/gpu-dra/driver/pkg/pci"
	"github.com/gpu-dra/driver/pkg/report"
)

func caring(t *testing.T) *Care {
	t.Helper()
	records, err := journal.Open(filepath.Join(t.TempDir(), "claims"))
	if err != nil {
		t.Fatal(err)
	}
	return New(&ground.Ground{Deps: ground.Deps{Config: config.Default()}, Journal: records})
}

// A GPU is held by who has a record of it; where records cannot be listed, all may be.
func TestHeld(t *testing.T) {
	c := caring(t)
	at := pci.Address{Bus: 1}
	if c.Held(at) {
		t.Error("held by nobody")
	}
	err := c.Journal.Save(&journal.Record{UID: "uid-1", Namespace: "ns", Name: "one", State: journal.StatePrepared, Devices: []journal.Device{{PCI: at}}})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Held(at) || c.Held(pci.Address{Bus: 2}) {
		t.Errorf("%t %t", c.Held(at), c.Held(pci.Address{Bus: 2}))
	}
	dir := filepath.Dir(c.Journal.Path("uid-1"))
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if !c.Held(pci.Address{Bus: 2}) {
		t.Error("free, though nobody can tell")
	}
}

// Pods are told of a claim's trouble while the claim is the one that was prepared.
func TestPodsOf(t *testing.T) {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one", UID: "uid-1"},
		Status: resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{
			{Resource: "pods", Name: "a", UID: "pod-a"}, {APIGroup: "other", Resource: "jobs", Name: "b", UID: "job-b"},
		}},
	}
	for name, row := range map[string]struct {
		asked types.UID
		away  bool
		want  []report.Pod
	}{
		"there":      {asked: "uid-1", want: []report.Pod{{Namespace: "ns", Name: "a", UID: "pod-a"}}},
		"made anew":  {asked: "uid-0"},
		"API failed": {asked: "uid-1", away: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := caring(t)
			client := fake.NewSimpleClientset(claim)
			if row.away {
				client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
			}
			c.Client = client
			got, err := c.podsOf(t.Context(), claims.Ref{Namespace: "ns", Name: "one", UID: row.asked})
			if (err != nil) != row.away || !slices.Equal(got, row.want) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	c := caring(t)
	c.Client = fake.NewSimpleClientset()
	if got, err := c.podsOf(t.Context(), claims.Ref{Namespace: "ns", Name: "gone", UID: "uid-9"}); len(got) != 0 || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// Before it is built there is nothing to say.
func TestNothingIsSaidBefore(t *testing.T) {
	c := caring(t)
	if got := c.Taints(); got != nil {
		t.Errorf("%d taints", len(got))
	}
	if got := c.allDevices(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if c.newClaimStatus() != nil || c.newRemedy() != nil {
		t.Error("made, though off by default")
	}
}
