package cluster_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpu-dra/driver/pkg/cluster"
)

// answers gives one version after the other, the last one for ever; an empty one is an error.
func answers(versions ...string) (cluster.Ask, *atomic.Int32) {
	var asked atomic.Int32
	return func(context.Context) (*apiversion.Info, error) {
		v := versions[min(int(asked.Add(1)), len(versions))-1]
		if v == "" {
			return nil, errors.New("no answer")
		}
		return &apiversion.Info{GitVersion: v}, nil
	}, &asked
}

func TestLook(t *testing.T) {
	for name, c := range map[string]struct {
		versions []string
		// want is the release after each look, changes how often it was said to be another.
		want    []string
		changes int
	}{
		"known":              {[]string{"v1.37.2"}, []string{"1.37.2"}, 1},
		"twice the same":     {[]string{"v1.37.2", "v1.37.2"}, []string{"1.37.2", "1.37.2"}, 1},
		"of a vendor":        {[]string{"v1.34.4-gke.1250000", "v1.34.4+k3s1"}, []string{"1.34.4", "1.34.4"}, 1},
		"not out yet":        {[]string{"v1.35.0-beta.0"}, []string{"1.35.0"}, 1},
		"an update":          {[]string{"v1.34.9", "v1.35.0"}, []string{"1.34.9", "1.35.0"}, 2},
		"no answer":          {[]string{"", "v1.34.0"}, []string{"", "1.34.0"}, 1},
		"no answer any more": {[]string{"v1.34.0", ""}, []string{"1.34.0", "1.34.0"}, 1},
		"nonsense":           {[]string{"v1.34.0", "dirty"}, []string{"1.34.0", "1.34.0"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			changes := 0
			w := cluster.Watch{Changed: func(context.Context) { changes++ }}
			w.Ask, _ = answers(c.versions...)
			var got []string
			for range c.versions {
				_ = w.Look(t.Context())
				release := ""
				if r := w.Release(); r != nil {
					release = r.String()
				}
				got = append(got, release)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || changes != c.changes {
				t.Errorf("%d changes (-want +got):\n%s", changes, diff)
			}
		})
	}
}

func TestLookNamesTheValue(t *testing.T) {
	w := cluster.Watch{}
	w.Ask, _ = answers("dirty")
	if err := w.Look(t.Context()); err == nil || !strings.Contains(err.Error(), `gitVersion "dirty"`) {
		t.Errorf("error %v", err)
	}
}

// Nobody who listens is no error, and the zero Watch knows nothing.
func TestNobodyListens(t *testing.T) {
	w := cluster.Watch{}
	if w.Release() != nil {
		t.Error("a release without an answer")
	}
	w.Ask, _ = answers("v1.37.0")
	if err := w.Look(t.Context()); err != nil || w.Release() == nil {
		t.Errorf("release %v, error %v", w.Release(), err)
	}
}

// Without an answer the question is repeated soon, with one it is repeated now and then: an update of
// the control plane shows within that time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, asked := answers("", "", "v1.34.4", "", "v1.35.0")
		w := cluster.Watch{Ask: ask}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if r := w.Release(); r == nil || r.String() != "1.34.4" || asked.Load() != 3 {
			t.Errorf("after 5 s: release %v, asked %d times", r, asked.Load())
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if r := w.Release(); r.String() != "1.35.0" || asked.Load() != 5 {
			t.Errorf("after 20 min: release %v, asked %d times", r, asked.Load())
		}
		stop()
		<-done
	})
}

// The question is the API server's /version.
func TestAsking(t *testing.T) {
	answer := `{"major":"1","minor":"36","gitVersion":"v1.36.1"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			t.Errorf("path %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ask := cluster.Asking(client.Discovery().RESTClient())
	if info, err := ask(t.Context()); err != nil || info.GitVersion != "v1.36.1" {
		t.Errorf("%+v, %v", info, err)
	}
	answer = "["
	if _, err := ask(t.Context()); err == nil {
		t.Error("an answer that is no JSON is taken")
	}
	server.Close()
	if _, err := ask(t.Context()); err == nil {
		t.Error("no answer is taken")
	}
}
