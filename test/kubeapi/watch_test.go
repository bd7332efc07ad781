package kubeapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/test/kubeapi"
)

// informer runs an informer of the slices of node n1 until the test ends.
func informer(t *testing.T, c kubernetes.Interface) cache.SharedIndexInformer {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "spec.nodeName=n1"
	}))
	inf := factory.Resource().V1().ResourceSlices().Informer()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.StartWithContext(ctx)
	return inf
}

func TestInformerSyncsAtOnceAndFollows(t *testing.T) {
	for name, set := range transports() {
		t.Run(name, func(t *testing.T) {
			s := start(t, kubeapi.Options{})
			config := s.RESTConfig("tester")
			set(config)
			c := client(t, config)
			first := must[*resourceapi.ResourceSlice](t)(c.ResourceV1().ResourceSlices().Create(t.Context(), slice("n1", "n1"), metav1.CreateOptions{}))
			must[*resourceapi.ResourceSlice](t)(c.ResourceV1().ResourceSlices().Create(t.Context(), slice("n2", "n2"), metav1.CreateOptions{}))
			inf := informer(t, c)
			eventually(t, "sync", inf.HasSynced)
			if n := len(s.Requests(kubeapi.Match{Verbs: []string{"list"}})); n != 0 {
				t.Errorf("%d lists: the informer fell back from its watch list", n)
			}
			if err := c.ResourceV1().ResourceSlices().Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			second := must[*resourceapi.ResourceSlice](t)(c.ResourceV1().ResourceSlices().Create(t.Context(), slice("n1", "n1"), metav1.CreateOptions{}))
			eventually(t, "informer holds only the second slice", func() bool {
				keys := inf.GetStore().ListKeys()
				return len(keys) == 1 && keys[0] == second.Name
			})
		})
	}
}

func TestInformerSurvivesBrokenWatches(t *testing.T) {
	s := start(t, kubeapi.Options{})
	c := client(t, s.RESTConfig("tester"))
	inf := informer(t, c)
	eventually(t, "sync", inf.HasSynced)
	slices := c.ResourceV1().ResourceSlices()
	n := 0
	grows := func(what string) {
		t.Helper()
		n++
		must[*resourceapi.ResourceSlice](t)(slices.Create(t.Context(), slice("n1", "n1"), metav1.CreateOptions{}))
		eventually(t, what, func() bool { return len(inf.GetStore().ListKeys()) == n })
	}
	grows("first slice")
	if dropped := s.DropWatches(kubeapi.Match{Resource: "resourceslices"}); dropped != 1 {
		t.Errorf("%d watches dropped, want 1", dropped)
	}
	eventually(t, "the watch is there again", func() bool { return s.Watches(kubeapi.Match{Resource: "resourceslices"}) == 1 })
	grows("slice after a dropped watch")
	s.Compact()
	grows("slice after the history was lost")
}

func TestWatchFromOldVersionExpires(t *testing.T) {
	s := start(t, kubeapi.Options{History: 2})
	slices := client(t, s.RESTConfig("tester")).ResourceV1().ResourceSlices()
	first := must[*resourceapi.ResourceSlice](t)(slices.Create(t.Context(), slice("n1", "n1"), metav1.CreateOptions{}))
	for range 3 {
		must[*resourceapi.ResourceSlice](t)(slices.Create(t.Context(), slice("n1", "n1"), metav1.CreateOptions{}))
	}
	if _, err := slices.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion}); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from before the history: %v, want expired", err)
	}
}

// TestWatchShowsWhatAListShows replays random writes and compares what a watch with a field selector
// builds up with what a list of the same selector gives.
func TestWatchShowsWhatAListShows(t *testing.T) {
	s := start(t, kubeapi.Options{})
	slices := client(t, s.RESTConfig("tester")).ResourceV1().ResourceSlices()
	ctx := t.Context()
	rapid.Check(t, func(rt *rapid.T) {
		opts := metav1.ListOptions{FieldSelector: "spec.pool.name=a"}
		list, err := slices.List(ctx, opts)
		if err != nil {
			rt.Fatal(err)
		}
		seen := map[string]string{}
		for i := range list.Items {
			seen[list.Items[i].Name] = list.Items[i].ResourceVersion
		}
		opts.ResourceVersion = list.ResourceVersion
		w, err := slices.Watch(ctx, opts)
		if err != nil {
			rt.Fatal(err)
		}
		defer w.Stop()
		for range rapid.IntRange(1, 12).Draw(rt, "writes") {
			name := rapid.SampledFrom([]string{"s0", "s1", "s2"}).Draw(rt, "name")
			pool := rapid.SampledFrom([]string{"a", "b", ""}).Draw(rt, "pool")
			o := slice("n1", pool)
			o.GenerateName, o.Name = "", name
			if pool == "" {
				err = slices.Delete(ctx, name, metav1.DeleteOptions{})
			} else if _, err = slices.Create(ctx, o, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				_, err = slices.Update(ctx, o, metav1.UpdateOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) {
				rt.Fatal(err)
			}
		}
		end := slice("n1", "a")
		end.GenerateName, end.Name = "", "end"
		if _, err := slices.Create(ctx, end, metav1.CreateOptions{}); err != nil {
			rt.Fatal(err)
		}
		follow(rt, w, seen)
		if err := slices.Delete(ctx, "end", metav1.DeleteOptions{}); err != nil {
			rt.Fatal(err)
		}
		delete(seen, "end")
		want := map[string]string{}
		opts.ResourceVersion = ""
		if list, err = slices.List(ctx, opts); err != nil {
			rt.Fatal(err)
		}
		for i := range list.Items {
			want[list.Items[i].Name] = list.Items[i].ResourceVersion
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			rt.Errorf("the watch built up something else (-list +watch):\n%s", diff)
		}
	})
}

// follow applies the events of w to seen until the object "end" comes; versions must rise.
func follow(rt *rapid.T, w watch.Interface, seen map[string]string) {
	last := 0
	for e := range w.ResultChan() {
		o, ok := e.Object.(*resourceapi.ResourceSlice)
		if !ok {
			rt.Fatalf("event %s with %T", e.Type, e.Object)
		}
		v, err := strconv.Atoi(o.ResourceVersion)
		if err != nil || v <= last {
			rt.Fatalf("version %q after %d: %v", o.ResourceVersion, last, err)
		}
		last = v
		_, had := seen[o.Name]
		if had != (e.Type != watch.Added) {
			rt.Fatalf("%s of %s, which was seen: %t", e.Type, o.Name, had)
		}
		if e.Type == watch.Deleted {
			delete(seen, o.Name)
		} else {
			seen[o.Name] = o.ResourceVersion
		}
		if o.Name == "end" {
			return
		}
	}
	rt.Fatal("the watch ended early")
}

func TestFaults(t *testing.T) {
	s := start(t, kubeapi.Options{})
	c := client(t, s.RESTConfig("tester"))
	claims := c.ResourceV1().ResourceClaims("default")
	create := func() error {
		_, err := claims.Create(t.Context(), claim("c"), metav1.CreateOptions{})
		return err
	}
	match := kubeapi.Match{Verbs: []string{"create"}, Resource: "resourceclaims", User: "tester"}
	for code, is := range map[int]func(error) bool{
		http.StatusForbidden: apierrors.IsForbidden, http.StatusInternalServerError: apierrors.IsInternalError,
		http.StatusTooManyRequests: apierrors.IsTooManyRequests, http.StatusGatewayTimeout: apierrors.IsTimeout,
		http.StatusServiceUnavailable: apierrors.IsServiceUnavailable,
	} {
		s.Inject(kubeapi.Fault{Match: match, Times: 1, Code: code})
		if err := create(); !is(err) {
			t.Errorf("code %d gives %v", code, err)
		}
	}
	s.Inject(kubeapi.Fault{Match: match, Times: 1, Drop: true})
	if err := create(); err == nil {
		t.Error("a dropped create succeeded")
	}
	if _, err := claims.Get(t.Context(), "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a failed create left something: %v", err)
	}
	s.Inject(kubeapi.Fault{Match: match, Times: 1, LoseAnswer: true})
	if err := create(); err == nil {
		t.Error("a create without an answer succeeded")
	}
	must[*resourceapi.ResourceClaim](t)(claims.Get(t.Context(), "c", metav1.GetOptions{}))

	remove := s.Inject(kubeapi.Fault{Match: kubeapi.Match{Verbs: []string{"get"}}, Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := claims.Get(ctx, "c", metav1.GetOptions{}); err == nil {
		t.Error("a hanging get answered")
	}
	done := make(chan error, 1)
	go func() {
		_, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
		done <- err
	}()
	remove()
	remove()
	if err := <-done; err != nil {
		t.Errorf("get after the fault: %v", err)
	}
	s.Inject(kubeapi.Fault{Match: kubeapi.Match{Verbs: []string{"get"}}, Times: 1, Delay: time.Millisecond})
	must[*resourceapi.ResourceClaim](t)(claims.Get(t.Context(), "c", metav1.GetOptions{}))
}

func TestAwayAndBack(t *testing.T) {
	s := start(t, kubeapi.Options{})
	c := client(t, s.RESTConfig("tester"))
	inf := informer(t, c)
	eventually(t, "sync", inf.HasSynced)
	if err := s.Away(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a list reached the absent server")
	}
	if err := s.Back(); err != nil {
		t.Fatal(err)
	}
	must[*resourceapi.ResourceSlice](t)(c.ResourceV1().ResourceSlices().Create(t.Context(), slice("n1", "n1"), metav1.CreateOptions{}))
	eventually(t, "the informer follows again", func() bool { return len(inf.GetStore().ListKeys()) == 1 })
}

func TestConcurrentWritersLoseNothing(t *testing.T) {
	s := start(t, kubeapi.Options{})
	c := client(t, s.RESTConfig("tester"))
	claims := c.ResourceV1().ResourceClaims("default")
	must[*resourceapi.ResourceClaim](t)(claims.Create(t.Context(), claim("c"), metav1.CreateOptions{}))
	const writers, rounds = 4, 10
	var conflicts atomic.Int64
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := 0; n < rounds; {
				o, err := claims.Get(t.Context(), "c", metav1.GetOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				if o.Labels == nil {
					o.Labels = map[string]string{}
				}
				o.Labels[fmt.Sprintf("w%d-%d", i, n)] = "x"
				switch _, err = claims.Update(t.Context(), o, metav1.UpdateOptions{}); {
				case apierrors.IsConflict(err):
					conflicts.Add(1)
				case err != nil:
					t.Error(err)
					return
				default:
					n++
				}
			}
		})
	}
	wg.Wait()
	got := must[*resourceapi.ResourceClaim](t)(claims.Get(t.Context(), "c", metav1.GetOptions{}))
	if len(got.Labels) != writers*rounds {
		t.Errorf("%d labels, want %d (after %d conflicts)", len(got.Labels), writers*rounds, conflicts.Load())
	}
	writes := s.Requests(kubeapi.Match{Writes: true, Resource: "resourceclaims"})
	if want := 1 + writers*rounds + int(conflicts.Load()); len(writes) != want {
		t.Errorf("%d writes in the log, want %d", len(writes), want)
	}
	s.ResetRequests()
	if n := len(s.Requests(kubeapi.Match{})); n != 0 {
		t.Errorf("%d requests after the reset", n)
	}
}
