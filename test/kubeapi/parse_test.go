package kubeapi

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		method, url string
		want        Request
		ok          bool
	}{
		{"GET", "/api/v1/nodes/n1", Request{Verb: "get", Version: "v1", Resource: "nodes", Name: "n1"}, true},
		{"GET", "/api/v1/namespaces", Request{Verb: "list", Version: "v1", Resource: "namespaces"}, true},
		{"GET", "/api/v1/namespaces/a", Request{Verb: "get", Version: "v1", Resource: "namespaces", Name: "a"}, true},
		{"PUT", "/api/v1/namespaces/a/status", Request{Verb: "update", Version: "v1", Resource: "namespaces", Name: "a", Subresource: "status"}, true},
		{"POST", "/api/v1/namespaces/a/pods", Request{Verb: "create", Version: "v1", Resource: "pods", Namespace: "a"}, true},
		{
			"PATCH", "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status",
			Request{Verb: "patch", Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims", Namespace: "a", Name: "c", Subresource: "status"},
			true,
		},
		{"GET", "/apis/resource.k8s.io/v1/resourceslices?watch=true", Request{Verb: "watch", Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}, true},
		{"DELETE", "/apis/resource.k8s.io/v1/resourceslices", Request{Verb: "deletecollection", Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}, true},
		{"DELETE", "/apis/resource.k8s.io/v1/resourceslices/s", Request{Verb: "delete", Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices", Name: "s"}, true},
		{"HEAD", "/api/v1/nodes", Request{}, false},
		{"GET", "/api/v1", Request{}, false},
		{"GET", "/apis/resource.k8s.io/v1", Request{}, false},
		{"GET", "/version", Request{}, false},
		{"GET", "/api/v1/nodes/n1/proxy/deep", Request{}, false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://host"+tc.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := parse(req)
		if ok != tc.ok {
			t.Errorf("%s %s: ok is %t", tc.method, tc.url, ok)
		}
		if diff := cmp.Diff(tc.want, got); ok && diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tc.method, tc.url, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/a/pods/p/status", "watch=1")
	f.Add("DELETE", "/apis/g/v/r", "")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		r, ok := parse(&http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{}})
		if !ok {
			return
		}
		if r.Verb == "" || (r.Name == "" && r.Subresource != "") && !strings.Contains(path, "//") {
			t.Errorf("%s %s: %+v", method, path, r)
		}
		if !(Match{Verbs: []string{r.Verb}, Resource: r.Resource, Namespace: r.Namespace, Name: r.Name, Writes: r.Write()}).matches(r) {
			t.Errorf("%+v does not match itself", r)
		}
	})
}

func FuzzLoad(f *testing.F) {
	f.Add("apiVersion: v1\nkind: Node\nmetadata: {name: n}\n---\n{}\n")
	f.Add("- a\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Start(Options{PlainHTTP: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.Load(strings.NewReader(text)); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}

func TestJournalIsBounded(t *testing.T) {
	j := journal{keep: 10}
	for i := range 100 {
		j.add(Request{Code: i})
	}
	got := j.find(Match{})
	if len(got) < 10 || len(got) > 20 || got[len(got)-1].Code != 99 {
		t.Errorf("%d requests, the last %d", len(got), got[len(got)-1].Code)
	}
}
