package uninstall_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-dra/driver/pkg/uninstall"
)

const driver = "gpu.nvidia.com"

// claim is one with devices of drivers, each written driver@node.
func claim(name string, reserved bool, devices ...string) resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
	if len(devices) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{}
	}
	for _, d := range devices {
		of, node, _ := strings.Cut(d, "@")
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Driver: of, Pool: node})
	}
	if reserved {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name + "-pod"}}
	}
	return c
}

// pages is a list of claims in pages of one.
type pages struct {
	claims []resourceapi.ResourceClaim
	err    error
	asked  []int64
}

func (p *pages) List(_ context.Context, o metav1.ListOptions) (*resourceapi.ResourceClaimList, error) {
	p.asked = append(p.asked, o.Limit)
	at := 0
	if o.Continue != "" {
		if _, err := fmt.Sscan(o.Continue, &at); err != nil {
			return nil, err
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	list := &resourceapi.ResourceClaimList{}
	if at < len(p.claims) {
		list.Items = p.claims[at : at+1]
	}
	if at+1 < len(p.claims) {
		list.Continue = fmt.Sprint(at + 1)
	}
	return list, nil
}

func TestOf(t *testing.T) {
	for name, row := range map[string]struct {
		claim resourceapi.ResourceClaim
		nodes []string
	}{
		"pending":            {claim("a", false), nil},
		"reserved first":     {claim("a", true), nil},
		"nobody uses it":     {claim("a", false, driver+"@n1"), nil},
		"another's":          {claim("a", true, "nic.example.com@n1"), nil},
		"in use":             {claim("a", true, driver+"@n1"), []string{"n1"}},
		"of two drivers":     {claim("a", true, "nic.example.com@n2", driver+"@n1"), []string{"n1"}},
		"two GPUs":           {claim("a", true, driver+"@n1", driver+"@n1"), []string{"n1"}},
		"a prefix of a name": {claim("a", true, driver+".example@n1"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			use, ok := uninstall.Of(&row.claim, driver)
			if ok != (row.nodes != nil) {
				t.Errorf("in use: %t", ok)
			}
			if diff := cmp.Diff(row.nodes, use.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	free := &pages{claims: []resourceapi.ResourceClaim{claim("a", false, driver+"@n1"), claim("b", true)}}
	if err := uninstall.Check(t.Context(), free, driver); err != nil || len(free.asked) != 2 {
		t.Errorf("%v after %d pages", err, len(free.asked))
	}
	if err := uninstall.Check(t.Context(), &pages{}, driver); err != nil {
		t.Errorf("a cluster without claims: %v", err)
	}
	used := &pages{}
	for i := range 25 {
		used.claims = append(used.claims, claim(fmt.Sprintf("c%02d", i), i != 1, driver+"@n1"))
	}
	err := uninstall.Check(t.Context(), used, driver)
	inUse := new(uninstall.InUseError)
	if !errors.As(err, &inUse) || len(inUse.Uses) != 24 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"24 claims", "team/c00 on n1, used by pod/c00-pod", "and 4 more", "--no-hooks", "cleanup"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "c01") || strings.Contains(err.Error(), "c24") {
		t.Errorf("names one that nobody uses, or too many: %v", err)
	}
}

// An API server that does not answer is no "nothing is in use"; only who wants just a warning
// goes on.
func TestTell(t *testing.T) {
	away := errors.New("away")
	for name, row := range map[string]struct {
		claims   *pages
		warnOnly bool
		fails    bool
		says     string
	}{
		"free":           {&pages{}, false, false, "No claim uses gpu.nvidia.com"},
		"used":           {&pages{claims: []resourceapi.ResourceClaim{claim("a", true, driver+"@n1")}}, false, true, ""},
		"used, warn":     {&pages{claims: []resourceapi.ResourceClaim{claim("a", true, driver+"@n1")}}, true, false, "warning: 1 claims"},
		"no answer":      {&pages{err: away}, false, true, ""},
		"no answer,warn": {&pages{err: away}, true, false, "warning: it is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := uninstall.Tell(t.Context(), row.claims, driver, row.warnOnly, &out)
			if (err != nil) != row.fails || !strings.Contains(out.String(), row.says) {
				t.Errorf("%v, printed %q", err, out.String())
			}
			if row.claims.err != nil && row.fails && (!errors.Is(err, uninstall.ErrUnknown) || !errors.Is(err, away)) {
				t.Errorf("%v", err)
			}
		})
	}
}
