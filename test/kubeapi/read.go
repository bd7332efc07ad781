package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

// filter builds the test of a list, watch or deletecollection from its selectors.
func filter(req *http.Request, r *storage.Resource, call Request) (func(storage.Object) bool, error) {
	q := req.URL.Query()
	byField, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("fieldSelector: %v", err))
	}
	byLabel, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("labelSelector: %v", err))
	}
	sample, err := r.NewObject(scheme.Scheme)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	known := r.Selectable(sample)
	for _, term := range byField.Requirements() {
		if !known.Has(term.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("fieldSelector: %s is not a selectable field of %s", term.Field, r.Resource))
		}
	}
	return func(o storage.Object) bool {
		return (call.Namespace == "" || o.GetNamespace() == call.Namespace) && (call.Name == "" || o.GetName() == call.Name) &&
			byLabel.Matches(labels.Set(o.GetLabels())) && (byField.Empty() || byField.Matches(r.Selectable(o)))
	}, nil
}

// listOf wraps objects into the list type of r.
func listOf(r *storage.Resource, items []storage.Object, version uint64) (runtime.Object, error) {
	list, err := scheme.Scheme.New(r.GroupVersion().WithKind(r.Kind + "List"))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	generic := make([]runtime.Object, len(items))
	for i, o := range items {
		generic[i] = o
	}
	if err := meta.SetList(list, generic); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	// Items of a typed list carry no kind of their own. They are shallow copies: the stored ones keep it.
	err = meta.EachListItem(list, func(o runtime.Object) error {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return nil
	})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	list.GetObjectKind().SetGroupVersionKind(r.GroupVersion().WithKind(r.Kind + "List"))
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	accessor.SetResourceVersion(strconv.FormatUint(version, 10))
	return list, nil
}

func (s *Server) list(req *http.Request, r *storage.Resource, call Request) (runtime.Object, error) {
	match, err := filter(req, r, call)
	if err != nil {
		return nil, err
	}
	items, version := s.store.List(r, match)
	return listOf(r, items, version)
}

// watchOptions are the parameters of a watch.
type watchOptions struct {
	version   uint64 // changes after this one are wanted, unless initial
	initial   bool   // the objects that exist come first, as ADDED
	mark      bool   // a bookmark says where the initial objects end
	bookmarks bool
	timeout   time.Duration
}

func parseWatch(req *http.Request) (watchOptions, error) {
	q := req.URL.Query()
	o := watchOptions{bookmarks: q.Get("allowWatchBookmarks") == "true"}
	if v := q.Get("resourceVersion"); v != "" {
		version, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return o, apierrors.NewBadRequest(fmt.Sprintf("resourceVersion: %q is not a version of this server", v))
		}
		o.version = version
	}
	switch initial := q.Get("sendInitialEvents"); {
	case initial == "true":
		if q.Get("resourceVersionMatch") != string(metav1.ResourceVersionMatchNotOlderThan) || !o.bookmarks {
			return o, apierrors.NewBadRequest("sendInitialEvents: needs resourceVersionMatch=NotOlderThan and allowWatchBookmarks=true")
		}
		o.initial, o.mark = true, true
	case initial == "" && o.version == 0:
		o.initial = true
	}
	const longest = 30 * time.Minute
	o.timeout = longest
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil && seconds > 0 {
		o.timeout = time.Duration(seconds) * time.Second
	}
	return o, nil
}

// watch streams changes until the client leaves, the time is over, or the server drops it.
func (s *Server) watch(w http.ResponseWriter, req *http.Request, r *storage.Resource, call Request) error {
	match, err := filter(req, r, call)
	if err != nil {
		return err
	}
	opts, err := parseWatch(req)
	if err != nil {
		return err
	}
	if !opts.initial {
		if _, _, err := s.store.Since(r, opts.version); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(req.Context(), opts.timeout)
	defer cancel()
	defer s.watches.add(call, cancel)()
	out, err := streamTo(w, req)
	if err != nil {
		return err
	}
	call.Code = http.StatusOK
	s.journal.add(call)
	stream := &stream{server: s, resource: r, match: match, out: out, flush: http.NewResponseController(w).Flush}
	// The answer has begun: what fails now can only end it, and the client sees that.
	_ = stream.run(ctx, opts)
	return nil
}

// stream is one running watch.
type stream struct {
	server   *Server
	resource *storage.Resource
	match    func(storage.Object) bool
	out      *restwatch.Encoder
	flush    func() error
	version  uint64
}

func (st *stream) run(ctx context.Context, opts watchOptions) error {
	st.version = opts.version
	if opts.initial {
		if err := st.initial(opts.mark); err != nil {
			return err
		}
	}
	if err := st.flush(); err != nil {
		return fmt.Errorf("flush watch: %w", err)
	}
	const bookmarkEvery = time.Minute // as the API server does
	tick := time.NewTicker(bookmarkEvery)
	defer tick.Stop()
	for {
		changed, err := st.catchUp()
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-tick.C:
			if opts.bookmarks {
				err = st.bookmark(nil)
			}
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// initial sends what exists, and where mark is set the bookmark that ends it.
func (st *stream) initial(mark bool) error {
	items, version := st.server.store.List(st.resource, st.match)
	st.version = version
	for _, o := range items {
		if err := st.out.Encode(&watch.Event{Type: watch.Added, Object: o}); err != nil {
			return fmt.Errorf("send initial object: %w", err)
		}
	}
	if !mark {
		return nil
	}
	return st.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
}

func (st *stream) bookmark(annotations map[string]string) error {
	o, err := st.resource.NewObject(scheme.Scheme)
	if err != nil {
		return err
	}
	o.SetResourceVersion(strconv.FormatUint(st.version, 10))
	o.SetAnnotations(annotations)
	if err := st.out.Encode(&watch.Event{Type: watch.Bookmark, Object: o}); err != nil {
		return fmt.Errorf("send bookmark: %w", err)
	}
	return st.flush()
}

// catchUp sends the changes since the last one and returns what tells of the next.
func (st *stream) catchUp() (<-chan struct{}, error) {
	changes, changed, err := st.server.store.Since(st.resource, st.version)
	if err != nil {
		status, _ := statusOf(err)
		if sent := st.out.Encode(&watch.Event{Type: watch.Error, Object: status}); sent != nil {
			return nil, fmt.Errorf("send expiry: %w", sent)
		}
		return nil, err
	}
	for _, c := range changes {
		st.version = c.Version
		event, ok := c.Event(st.match)
		if !ok {
			continue
		}
		if err := st.out.Encode(&event); err != nil {
			return nil, fmt.Errorf("send change: %w", err)
		}
	}
	if len(changes) == 0 {
		return changed, nil
	}
	return changed, st.flush()
}
