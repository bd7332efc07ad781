package kubeapi

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Request is one request that the server got, as [Server.Requests] reports it.
type Request struct {
	// At is when it arrived.
	At time.Time
	// User is the bearer token, which is the user name of [Server.RESTConfig].
	User      string
	UserAgent string
	// Verb is one of get, list, watch, create, update, patch, delete, deletecollection.
	Verb        string
	Group       string
	Version     string
	Resource    string
	Subresource string
	Namespace   string
	Name        string
	// Code is the HTTP status of the answer; 0 where none was given. A watch is recorded when it
	// starts, every other request when it is answered.
	Code int
}

// Write tells whether the request would change something.
func (r Request) Write() bool {
	return !slices.Contains([]string{"get", "list", "watch"}, r.Verb)
}

func (r Request) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}
}

func (r Request) key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// Match selects requests. An empty field matches every value.
type Match struct {
	User string
	// Verbs are the verbs of [Request].Verb.
	Verbs       []string
	Resource    string
	Subresource string
	Namespace   string
	Name        string
	// Writes selects requests that would change something.
	Writes bool
}

func (m Match) matches(r Request) bool {
	same := func(want, got string) bool { return want == "" || want == got }
	return same(m.User, r.User) && same(m.Resource, r.Resource) && same(m.Subresource, r.Subresource) &&
		same(m.Namespace, r.Namespace) && same(m.Name, r.Name) &&
		(len(m.Verbs) == 0 || slices.Contains(m.Verbs, r.Verb)) && (!m.Writes || r.Write())
}

// journal keeps the newest requests.
type journal struct {
	mu       sync.Mutex
	requests []Request
	keep     int
}

func (j *journal) add(r Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.requests = append(j.requests, r)
	if len(j.requests) > 2*j.keep {
		j.requests = slices.Clone(j.requests[len(j.requests)-j.keep:])
	}
}

func (j *journal) find(m Match) []Request {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []Request
	for _, r := range j.requests {
		if m.matches(r) {
			found = append(found, r)
		}
	}
	return found
}

func (j *journal) reset() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.requests = nil
}

// parse reads the API path and verb of a request. ok is false where the path names no collection.
func parse(req *http.Request) (Request, bool) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	r := Request{UserAgent: req.UserAgent(), User: strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")}
	switch {
	case len(parts) > 2 && parts[0] == "api":
		r.Version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		r.Group, r.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return r, false
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" {
		r.Namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 3 {
		return r, false
	}
	parts = append(parts, "", "")
	r.Resource, r.Name, r.Subresource = parts[0], parts[1], parts[2]
	r.Verb = verb(req, r.Name != "")
	return r, r.Verb != ""
}

func verb(req *http.Request, named bool) string {
	switch req.Method {
	case http.MethodGet:
		switch watch := req.URL.Query().Get("watch"); {
		case watch == "true" || watch == "1":
			return "watch"
		case named:
			return "get"
		default:
			return "list"
		}
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if named {
			return "delete"
		}
		return "deletecollection"
	default:
		return ""
	}
}
