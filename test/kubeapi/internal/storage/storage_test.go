package storage_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

func newStore(t testing.TB, keep int) (*storage.Store, *storage.Resource) {
	t.Helper()
	s := storage.New(keep, func() time.Time { return time.Unix(1e9, 5) })
	r, ok := s.Find(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"))
	if !ok {
		t.Fatal("claims are not served")
	}
	return s, r
}

func claim(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func key(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }

func all(storage.Object) bool { return true }

func label(value string) func(storage.Object) (storage.Object, error) {
	return func(o storage.Object) (storage.Object, error) {
		o.SetLabels(map[string]string{"v": value})
		return o, nil
	}
}

func TestServedTypesAreComplete(t *testing.T) {
	s, _ := newStore(t, 10)
	for _, r := range storage.Served() {
		o, err := r.NewObject(scheme.Scheme)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.GetObjectKind().GroupVersionKind(); got != r.GVK() {
			t.Errorf("new object of %s is a %s", r.GVK(), got)
		}
		if back, ok := s.ByKind(r.GVK()); !ok || back.GroupVersionResource != r.GroupVersionResource {
			t.Errorf("%s is not found by its kind", r.GVK())
		}
		fields := r.Selectable(o)
		if !fields.Has("metadata.name") || fields.Has("metadata.namespace") != r.Namespaced {
			t.Errorf("%s: selectable fields %v", r.Resource, fields)
		}
	}
	if _, ok := s.ByKind(corev1.SchemeGroupVersion.WithKind("Secret")); ok {
		t.Error("secrets are served")
	}
}

func TestTimesHaveWholeSeconds(t *testing.T) {
	s, r := newStore(t, 10)
	o, err := s.Create(r, claim("c"), false)
	if err != nil {
		t.Fatal(err)
	}
	if at := o.GetCreationTimestamp(); at.Nanosecond() != 0 || at.Unix() != 1e9 {
		t.Errorf("created at %v", at)
	}
}

func TestGeneratedNamesAreCutAndUnique(t *testing.T) {
	s, r := newStore(t, 10)
	seen := map[string]bool{}
	for range 20 {
		c := claim("")
		for range 100 {
			c.GenerateName += "x"
		}
		o, err := s.Create(r, c, false)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.GetName()) != 63 || seen[o.GetName()] {
			t.Errorf("name %q", o.GetName())
		}
		seen[o.GetName()] = true
	}
}

func TestDeleteChecksPreconditions(t *testing.T) {
	s, r := newStore(t, 10)
	o, err := s.Create(r, claim("c"), false)
	if err != nil {
		t.Fatal(err)
	}
	uid, version, other := o.GetUID(), o.GetResourceVersion(), "0"
	for name, tc := range map[string]struct {
		pre      metav1.Preconditions
		conflict bool
	}{
		"other UID":     {metav1.Preconditions{UID: (*types.UID)(&other)}, true},
		"other version": {metav1.Preconditions{UID: &uid, ResourceVersion: &other}, true},
		"both":          {metav1.Preconditions{UID: &uid, ResourceVersion: &version}, false},
	} {
		if _, err := s.Delete(r, key("c"), &tc.pre, true); apierrors.IsConflict(err) != tc.conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPutReplacesButKeepsIdentity(t *testing.T) {
	s, r := newStore(t, 10)
	var uids []types.UID
	for range 2 {
		c := claim("c")
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
		if err := s.Put(r, c); err != nil {
			t.Fatal(err)
		}
		o, err := s.Get(r, key("c"))
		if err != nil {
			t.Fatal(err)
		}
		uids = append(uids, o.GetUID())
	}
	if uids[0] == "" || uids[0] != uids[1] {
		t.Errorf("UIDs %q", uids)
	}
}

// TestHistoryTellsTheStore does random writes and checks that the history, replayed by versions, gives
// what is stored, whatever is cut from it.
func TestHistoryTellsTheStore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		keep := rapid.IntRange(1, 30).Draw(rt, "keep")
		s, r := newStore(t, keep)
		writes := rapid.IntRange(0, 40).Draw(rt, "writes")
		for i := range writes {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "name")
			var err error
			switch rapid.IntRange(0, 3).Draw(rt, "verb") {
			case 0:
				_, err = s.Create(r, claim(name), false)
			case 1:
				_, err = s.Update(r, "", key(name), false, label(fmt.Sprint(i)))
			case 2:
				_, err = s.Delete(r, key(name), nil, false)
			case 3:
				_, err = s.Update(r, "status", key(name), false, label("ignored"))
			}
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
				rt.Fatal(err)
			}
		}
		objects, version := s.List(r, all)
		want := map[string]string{}
		for _, o := range objects {
			want[o.GetName()] = o.GetResourceVersion()
		}
		changes, _, err := s.Since(r, 1)
		if err != nil {
			if !apierrors.IsResourceExpired(err) || int(version) <= keep {
				rt.Fatalf("history of %d from version 1 at %d: %v", keep, version, err)
			}
			return
		}
		got := map[string]string{}
		last := uint64(1)
		for _, c := range changes {
			e, ok := c.Event(all)
			o, typed := e.Object.(storage.Object)
			if !ok || !typed || c.Version <= last || o.GetResourceVersion() != strconv.FormatUint(c.Version, 10) {
				rt.Fatalf("change %d after %d: %+v", c.Version, last, e)
			}
			last = c.Version
			if e.Type == watch.Deleted {
				delete(got, o.GetName())
			} else {
				got[o.GetName()] = o.GetResourceVersion()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || last > version {
			rt.Errorf("replayed to %d of %d (-stored +replayed):\n%s", last, version, diff)
		}
	})
}

func TestCompactExpiresAndWakes(t *testing.T) {
	s, r := newStore(t, 10)
	_, changed, err := s.Since(r, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Compact()
	<-changed
	if _, _, err := s.Since(r, 1); !apierrors.IsResourceExpired(err) {
		t.Errorf("after compaction: %v", err)
	}
}

func TestApplyConflictsUnlessForced(t *testing.T) {
	s, r := newStore(t, 10)
	if _, err := s.Create(r, claim("c"), false); err != nil {
		t.Fatal(err)
	}
	owners := storage.NewFieldOwners()
	apply := func(who, value string, force bool) error {
		applied := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
			"metadata": map[string]any{"name": "c", "namespace": "ns", "labels": map[string]any{"v": value}},
		}}
		_, err := s.Update(r, "", key("c"), false, func(o storage.Object) (storage.Object, error) {
			return owners.Apply(r, "", who, force, o, applied)
		})
		return err
	}
	for i, tc := range []struct {
		who, value string
		force      bool
		conflict   bool
	}{{"a", "1", false, false}, {"a", "2", false, false}, {"b", "3", false, true}, {"b", "3", true, false}, {"a", "4", false, true}} {
		if err := apply(tc.who, tc.value, tc.force); apierrors.IsConflict(err) != tc.conflict || (err != nil && !tc.conflict) {
			t.Errorf("apply %d: %v", i, err)
		}
	}
	// A plain update of an owned field takes it over.
	_, err := s.Update(r, "", key("c"), false, func(o storage.Object) (storage.Object, error) {
		changed, err := label("5")(o.DeepCopyObject().(storage.Object))
		if err != nil {
			return nil, err
		}
		return owners.Track(r, "", "plain", o, changed)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := apply("b", "6", false); !apierrors.IsConflict(err) {
		t.Errorf("apply over a plain update: %v, want a conflict", err)
	}
}

func FuzzPatched(f *testing.F) {
	f.Add(`{"metadata":{"labels":{"a":"b"}}}`)
	f.Add(`[{"op":"replace","path":"/metadata/name","value":"x"}]`)
	f.Add(`{"spec":{"devices":{"requests":[{"name":"r","$patch":"delete"}]}}}`)
	f.Add(`{"status":{"devices":[{"driver":"d","pool":"p","device":"x"}]}}`)
	f.Add(`[{"op":"replace","path":""}]`)
	f.Add(`null`)
	s := storage.New(1, time.Now)
	r, _ := s.Find(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"))
	f.Fuzz(func(t *testing.T, patch string) {
		for _, kind := range []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType} {
			before := claim("c")
			after, err := storage.Patched(r, kind, before, []byte(patch))
			if diff := cmp.Diff(claim("c"), before); diff != "" {
				t.Fatalf("%s changed its input:\n%s", kind, diff)
			}
			if err != nil {
				if apierrors.ReasonForError(err) != metav1.StatusReasonBadRequest {
					t.Errorf("%s: %v is no bad request", kind, err)
				}
				continue
			}
			if _, err := json.Marshal(after); err != nil {
				t.Errorf("%s made something that has no JSON: %v", kind, err)
			}
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	s, r := newStore(b, 1000)
	if _, err := s.Create(r, claim("c"), false); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		if _, err := s.Update(r, "", key("c"), false, label(strconv.Itoa(n))); err != nil {
			b.Fatal(err)
		}
	}
}
