package kubeapi

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
)

// change is one entry of a table's history. old is nil for a creation, now is nil for a deletion;
// last is what a DELETED event shows.
type change struct {
	version uint64
	old     object
	now     object
	last    object
}

// table holds one collection and the recent changes to it.
type table struct {
	res     *resource
	objects map[types.NamespacedName]object
	history []change
	// floor is the newest version that history no longer holds: a watch from before it has expired.
	floor uint64
	// changed is closed, and replaced, when history grows or is cut.
	changed chan struct{}
}

// store is the storage below the server: collections under one rising version.
type store struct {
	mu      sync.RWMutex
	version uint64
	tables  map[schema.GroupVersionResource]*table
	keep    int // changes kept per table
	now     func() time.Time
}

func newStore(keep int, now func() time.Time) *store {
	s := &store{version: 1, tables: map[schema.GroupVersionResource]*table{}, keep: keep, now: now}
	for _, r := range served() {
		s.tables[r.GroupVersionResource] = &table{res: r, objects: map[types.NamespacedName]object{}, changed: make(chan struct{})}
	}
	return s
}

func (s *store) resource(gvr schema.GroupVersionResource) (*resource, bool) {
	t, ok := s.tables[gvr]
	if !ok {
		return nil, false
	}
	return t.res, true
}

func (s *store) get(r *resource, key types.NamespacedName) (object, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tables[r.GroupVersionResource].find(key)
}

func (t *table) find(key types.NamespacedName) (object, error) {
	o, ok := t.objects[key]
	if !ok {
		return nil, apierrors.NewNotFound(t.res.GroupResource(), key.Name)
	}
	return o, nil
}

// list returns the matching objects in the order of namespace and name, and the version they are of.
func (s *store) list(r *resource, match func(object) bool) ([]object, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []object
	for _, o := range s.tables[r.GroupVersionResource].objects {
		if match(o) {
			found = append(found, o)
		}
	}
	sort.Slice(found, func(i, j int) bool {
		a, b := found[i], found[j]
		if c := strings.Compare(a.GetNamespace(), b.GetNamespace()); c != 0 {
			return c < 0
		}
		return a.GetName() < b.GetName()
	})
	return found, s.version
}

// record appends a change and wakes the watches. The caller holds the lock.
func (s *store) record(t *table, c change) {
	t.history = append(t.history, c)
	if extra := len(t.history) - s.keep; extra > 0 {
		t.cut(extra)
	}
	t.wake()
}

// cut forgets the oldest n changes. The caller holds the lock.
func (t *table) cut(n int) {
	if n == 0 {
		return
	}
	t.floor = t.history[n-1].version
	t.history = slices.Clone(t.history[n:])
}

func (t *table) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// since returns the changes after version, and a channel that is closed at the next one. It fails
// with an Expired error where the history no longer reaches back that far.
func (s *store) since(r *resource, version uint64) ([]change, <-chan struct{}, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tables[r.GroupVersionResource]
	if version < t.floor {
		return nil, nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, t.floor))
	}
	i, _ := slices.BinarySearchFunc(t.history, version+1, func(c change, v uint64) int { return int(c.version) - int(v) })
	return slices.Clone(t.history[i:]), t.changed, nil
}

// compact forgets the whole history, so that every watch from an older version expires.
func (s *store) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		s.version++
		t.history, t.floor = nil, s.version
		t.wake()
	}
}

// commit stores o as a new version. The caller holds the lock and no longer changes o.
func (s *store) commit(t *table, old, o object) object {
	s.version++
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	o.GetObjectKind().SetGroupVersionKind(t.res.gvk())
	t.objects[keyOf(o)] = o
	s.record(t, change{version: s.version, old: old, now: o})
	return o
}

func keyOf(o object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// create stores a new object and returns it. o is taken over. put keeps what a client may not set.
func (s *store) create(r *resource, o object, put, dryRun bool) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[r.GroupVersionResource]
	if err := t.name(o); err != nil {
		return nil, err
	}
	if _, exists := t.objects[keyOf(o)]; exists {
		return nil, apierrors.NewAlreadyExists(r.GroupResource(), o.GetName())
	}
	if !put && o.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("metadata.resourceVersion: must not be set on objects to be created")
	}
	if !put || o.GetUID() == "" {
		o.SetUID(uuid.NewUUID())
	}
	// API times have whole seconds: what is stored must read the same after a trip over the wire.
	o.SetCreationTimestamp(metav1.NewTime(s.now().Truncate(time.Second)))
	o.SetDeletionTimestamp(nil)
	o.SetGeneration(1)
	if r.status && !r.statusOnCreate && !put {
		clearMember(o, "Status")
	}
	if dryRun {
		return o, nil
	}
	return s.commit(t, nil, o), nil
}

// name completes generateName and checks the result.
func (t *table) name(o object) error {
	if o.GetName() == "" && o.GetGenerateName() != "" {
		const maxBase = 58 // 63 less five random characters, as the API server cuts it.
		base := o.GetGenerateName()
		base = base[:min(len(base), maxBase)]
		for {
			o.SetName(base + rand.String(5))
			if _, taken := t.objects[keyOf(o)]; !taken {
				break
			}
		}
	}
	if o.GetName() == "" {
		return t.invalid(o, field.Required(field.NewPath("metadata", "name"), "name or generateName is required"))
	}
	if msgs := validation.IsDNS1123Subdomain(o.GetName()); len(msgs) > 0 {
		return t.invalid(o, field.Invalid(field.NewPath("metadata", "name"), o.GetName(), strings.Join(msgs, "; ")))
	}
	return nil
}

func (t *table) invalid(o object, errs ...*field.Error) error {
	return apierrors.NewInvalid(t.res.gvk().GroupKind(), o.GetName(), errs)
}

func clearMember(o object, name string) {
	if v, ok := member(o, name); ok {
		v.Set(reflect.Zero(v.Type()))
	}
}

// update replaces an object by what mutate makes of it. mutate gets its own copy and runs under the
// lock, so a patch is atomic. subresource is "" or "status". A result equal to what is stored is not
// written, as in the API server.
func (s *store) update(r *resource, subresource string, key types.NamespacedName, dryRun bool, mutate func(object) (object, error)) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[r.GroupVersionResource]
	old, err := t.find(key)
	if err != nil {
		return nil, err
	}
	o, err := mutate(clone(old))
	if err != nil {
		return nil, err
	}
	if err := t.checkUpdate(old, o); err != nil {
		return nil, err
	}
	t.keepFixed(subresource, old, o)
	if subresource != "status" && t.specChanged(old, o) {
		if r.fixedSpec {
			return nil, t.invalid(o, field.Forbidden(field.NewPath("spec"), "field is immutable"))
		}
		o.SetGeneration(old.GetGeneration() + 1)
	}
	if equality.Semantic.DeepEqual(old, o) || dryRun {
		return o, nil
	}
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 {
		return s.remove(t, o), nil
	}
	return s.commit(t, old, o), nil
}

// checkUpdate refuses an update of another object or of another version than the stored one.
func (t *table) checkUpdate(old, o object) error {
	if keyOf(o) != keyOf(old) {
		return apierrors.NewBadRequest(fmt.Sprintf("the object is %s, the request is for %s", keyOf(o), keyOf(old)))
	}
	if o.GetUID() != "" && o.GetUID() != old.GetUID() {
		return t.conflict(old, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", o.GetUID(), old.GetUID()))
	}
	if v := o.GetResourceVersion(); v != "" && v != "0" && v != old.GetResourceVersion() {
		return t.conflict(old, fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

func (t *table) conflict(o object, err error) error {
	return apierrors.NewConflict(t.res.GroupResource(), o.GetName(), err)
}

// keepFixed restores what an update through subresource may not change.
func (t *table) keepFixed(subresource string, old, o object) {
	o.SetUID(old.GetUID())
	o.SetResourceVersion(old.GetResourceVersion())
	o.SetGeneration(old.GetGeneration())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	o.GetObjectKind().SetGroupVersionKind(t.res.gvk())
	switch {
	case subresource == "status":
		managed := o.GetManagedFields()
		copyMember(o, old, "Spec")
		copyMember(o, old, "ObjectMeta")
		o.SetManagedFields(managed)
	case t.res.status:
		copyMember(o, old, "Status")
	}
}

func (t *table) specChanged(old, o object) bool {
	a, ok := member(old, "Spec")
	if !ok {
		return false
	}
	b, _ := member(o, "Spec")
	return !equality.Semantic.DeepEqual(a.Interface(), b.Interface())
}

// delete removes an object, or only marks it while finalizers hold it. It returns the last state.
func (s *store) delete(r *resource, key types.NamespacedName, pre *metav1.Preconditions, dryRun bool) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[r.GroupVersionResource]
	old, err := t.find(key)
	if err != nil {
		return nil, err
	}
	if pre != nil && pre.UID != nil && *pre.UID != old.GetUID() {
		return nil, t.conflict(old, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *pre.UID, old.GetUID()))
	}
	if pre != nil && pre.ResourceVersion != nil && *pre.ResourceVersion != old.GetResourceVersion() {
		return nil, t.conflict(old, fmt.Errorf("Precondition failed: resourceVersion in precondition: %v, in object meta: %v", *pre.ResourceVersion, old.GetResourceVersion()))
	}
	if dryRun {
		return old, nil
	}
	if len(old.GetFinalizers()) == 0 {
		return s.remove(t, clone(old)), nil
	}
	if old.GetDeletionTimestamp() != nil {
		return old, nil
	}
	o := clone(old)
	now := metav1.NewTime(s.now().Truncate(time.Second))
	o.SetDeletionTimestamp(&now)
	o.SetGeneration(old.GetGeneration() + 1)
	return s.commit(t, old, o), nil
}

// remove takes an object out. last is taken over. The caller holds the lock.
func (s *store) remove(t *table, last object) object {
	s.version++
	old := t.objects[keyOf(last)]
	delete(t.objects, keyOf(last))
	last.SetResourceVersion(strconv.FormatUint(s.version, 10))
	s.record(t, change{version: s.version, old: old, last: last})
	return last
}

// event turns a change into what a watch with that filter shows, if anything: an object that comes
// into the filter is ADDED, one that leaves it DELETED.
func (c change) event(match func(object) bool) (watch.Event, bool) {
	before := c.old != nil && match(c.old)
	switch after := c.now != nil && match(c.now); {
	case after && before:
		return watch.Event{Type: watch.Modified, Object: c.now}, true
	case after:
		return watch.Event{Type: watch.Added, Object: c.now}, true
	case before && c.now != nil:
		gone := clone(c.old)
		gone.SetResourceVersion(strconv.FormatUint(c.version, 10))
		return watch.Event{Type: watch.Deleted, Object: gone}, true
	case before:
		return watch.Event{Type: watch.Deleted, Object: c.last}, true
	default:
		return watch.Event{}, false
	}
}
