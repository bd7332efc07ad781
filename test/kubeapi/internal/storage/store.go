package storage

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

// Change is one entry of a table's history. old is nil for a creation, now is nil for a deletion;
// last is what a DELETED event shows.
type Change struct {
	Version uint64
	old     Object
	now     Object
	last    Object
}

// table holds one collection and the recent changes to it.
type table struct {
	res     *Resource
	objects map[types.NamespacedName]Object
	history []Change
	// floor is the newest version that history no longer holds: a watch from before it has expired.
	floor uint64
	// changed is closed, and replaced, when history grows or is cut.
	changed chan struct{}
}

// Store is the storage below the server: collections under one rising version.
type Store struct {
	mu      sync.RWMutex
	version uint64
	tables  map[schema.GroupVersionResource]*table
	keep    int // changes kept per table
	now     func() time.Time
}

// New returns an empty store that keeps that many changes of each resource for watches.
func New(keep int, now func() time.Time) *Store {
	s := &Store{version: 1, tables: map[schema.GroupVersionResource]*table{}, keep: keep, now: now}
	for _, r := range Served() {
		s.tables[r.GroupVersionResource] = &table{res: r, objects: map[types.NamespacedName]Object{}, changed: make(chan struct{})}
	}
	return s
}

// Find returns a served resource.
func (s *Store) Find(gvr schema.GroupVersionResource) (*Resource, bool) {
	t, ok := s.tables[gvr]
	if !ok {
		return nil, false
	}
	return t.res, true
}

// Get returns a stored object, which must not be changed.
func (s *Store) Get(r *Resource, key types.NamespacedName) (Object, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tables[r.GroupVersionResource].find(key)
}

func (t *table) find(key types.NamespacedName) (Object, error) {
	o, ok := t.objects[key]
	if !ok {
		return nil, apierrors.NewNotFound(t.res.GroupResource(), key.Name)
	}
	return o, nil
}

// List returns the matching objects in the order of namespace and name, and the version they are of.
func (s *Store) List(r *Resource, match func(Object) bool) ([]Object, uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []Object
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
func (s *Store) record(t *table, c Change) {
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
	t.floor = t.history[n-1].Version
	t.history = slices.Clone(t.history[n:])
}

func (t *table) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Since returns the changes after version, and a channel that is closed at the next one. It fails
// with an Expired error where the history no longer reaches back that far.
func (s *Store) Since(r *Resource, version uint64) ([]Change, <-chan struct{}, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tables[r.GroupVersionResource]
	if version < t.floor {
		return nil, nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, t.floor))
	}
	i, _ := slices.BinarySearchFunc(t.history, version+1, func(c Change, v uint64) int { return int(c.Version) - int(v) })
	return slices.Clone(t.history[i:]), t.changed, nil
}

// Compact forgets the whole history, so that every watch from an older version expires.
func (s *Store) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		s.version++
		t.history, t.floor = nil, s.version
		t.wake()
	}
}

// commit stores o as a new version. The caller holds the lock and no longer changes o.
func (s *Store) commit(t *table, old, o Object) Object {
	s.version++
	o.SetResourceVersion(strconv.FormatUint(s.version, 10))
	o.GetObjectKind().SetGroupVersionKind(t.res.GVK())
	settle(o)
	t.objects[KeyOf(o)] = o
	s.record(t, Change{Version: s.version, old: old, now: o})
	return o
}

// settle makes an object one that may be encoded by several goroutines at once: a quantity keeps
// its text when it is first asked for it.
func settle(o Object) {
	if m, ok := o.(interface{ Marshal() ([]byte, error) }); ok {
		_, _ = m.Marshal() // whoever encodes it in earnest gets the error
	}
}

// KeyOf returns namespace and name of o.
func KeyOf(o Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Create stores a new object and returns it. o is taken over.
func (s *Store) Create(r *Resource, o Object, dryRun bool) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.create(r, o, false, dryRun)
}

// create is Create under the lock. put keeps what a client may not set.
func (s *Store) create(r *Resource, o Object, put, dryRun bool) (Object, error) {
	t := s.tables[r.GroupVersionResource]
	if err := t.name(o); err != nil {
		return nil, err
	}
	if _, exists := t.objects[KeyOf(o)]; exists {
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
	if r.Status && !r.StatusOnCreate && !put {
		clearMember(o, "Status")
	}
	if dryRun {
		return o, nil
	}
	return s.commit(t, nil, o), nil
}

// name completes generateName and checks the result.
func (t *table) name(o Object) error {
	if o.GetName() == "" && o.GetGenerateName() != "" {
		const maxBase = 58 // 63 less five random characters, as the API server cuts it.
		base := o.GetGenerateName()
		base = base[:min(len(base), maxBase)]
		for {
			o.SetName(base + rand.String(5))
			if _, taken := t.objects[KeyOf(o)]; !taken {
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

func (t *table) invalid(o Object, errs ...*field.Error) error {
	return apierrors.NewInvalid(t.res.GVK().GroupKind(), o.GetName(), errs)
}

func clearMember(o Object, name string) {
	if v, ok := member(o, name); ok {
		v.Set(reflect.Zero(v.Type()))
	}
}

// Update replaces an object by what mutate makes of it. mutate gets its own copy and runs under the
// lock, so a patch is atomic. subresource is "" or "status". A result equal to what is stored is not
// written, as in the API server.
func (s *Store) Update(r *Resource, subresource string, key types.NamespacedName, dryRun bool, mutate func(Object) (Object, error)) (Object, error) {
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
func (t *table) checkUpdate(old, o Object) error {
	if KeyOf(o) != KeyOf(old) {
		return apierrors.NewBadRequest(fmt.Sprintf("the object is %s, the request is for %s", KeyOf(o), KeyOf(old)))
	}
	if o.GetUID() != "" && o.GetUID() != old.GetUID() {
		return t.conflict(old, fmt.Errorf("precondition failed: UID in precondition: %v, UID in object meta: %v", o.GetUID(), old.GetUID()))
	}
	if v := o.GetResourceVersion(); v != "" && v != "0" && v != old.GetResourceVersion() {
		return t.conflict(old, fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

func (t *table) conflict(o Object, err error) error {
	return apierrors.NewConflict(t.res.GroupResource(), o.GetName(), err)
}

// keepFixed restores what an update through subresource may not change.
func (t *table) keepFixed(subresource string, old, o Object) {
	o.SetUID(old.GetUID())
	o.SetResourceVersion(old.GetResourceVersion())
	o.SetGeneration(old.GetGeneration())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	o.GetObjectKind().SetGroupVersionKind(t.res.GVK())
	switch {
	case subresource == "status":
		managed := o.GetManagedFields()
		copyMember(o, old, "Spec")
		copyMember(o, old, "ObjectMeta")
		o.SetManagedFields(managed)
	case t.res.Status:
		copyMember(o, old, "Status")
	}
}

func (t *table) specChanged(old, o Object) bool {
	a, ok := member(old, "Spec")
	if !ok {
		return false
	}
	b, _ := member(o, "Spec")
	return !equality.Semantic.DeepEqual(a.Interface(), b.Interface())
}

// Delete removes an object, or only marks it while finalizers hold it. It returns the last state.
func (s *Store) Delete(r *Resource, key types.NamespacedName, pre *metav1.Preconditions, dryRun bool) (Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[r.GroupVersionResource]
	old, err := t.find(key)
	if err != nil {
		return nil, err
	}
	if pre != nil && pre.UID != nil && *pre.UID != old.GetUID() {
		return nil, t.conflict(old, fmt.Errorf("precondition failed: UID in precondition: %v, UID in object meta: %v", *pre.UID, old.GetUID()))
	}
	if pre != nil && pre.ResourceVersion != nil && *pre.ResourceVersion != old.GetResourceVersion() {
		return nil, t.conflict(old, fmt.Errorf("precondition failed: resourceVersion in precondition: %v, in object meta: %v", *pre.ResourceVersion, old.GetResourceVersion()))
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
func (s *Store) remove(t *table, last Object) Object {
	s.version++
	old := t.objects[KeyOf(last)]
	delete(t.objects, KeyOf(last))
	last.SetResourceVersion(strconv.FormatUint(s.version, 10))
	s.record(t, Change{Version: s.version, old: old, last: last})
	return last
}

// Event turns a change into what a watch with that filter shows, if anything: an object that comes
// into the filter is ADDED, one that leaves it DELETED.
func (c Change) Event(match func(Object) bool) (watch.Event, bool) {
	before := c.old != nil && match(c.old)
	switch after := c.now != nil && match(c.now); {
	case after && before:
		return watch.Event{Type: watch.Modified, Object: c.now}, true
	case after:
		return watch.Event{Type: watch.Added, Object: c.now}, true
	case before && c.now != nil:
		gone := clone(c.old)
		gone.SetResourceVersion(strconv.FormatUint(c.Version, 10))
		return watch.Event{Type: watch.Deleted, Object: gone}, true
	case before:
		return watch.Event{Type: watch.Deleted, Object: c.last}, true
	default:
		return watch.Event{}, false
	}
}

// Put creates o as it is, or replaces what is there, keeping the identity of the stored object.
func (s *Store) Put(r *Resource, o Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[r.GroupVersionResource]
	old, exists := t.objects[KeyOf(o)]
	if !exists {
		_, err := s.create(r, o, true, false)
		return err
	}
	if o.GetUID() == "" {
		o.SetUID(old.GetUID())
	}
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetGeneration(old.GetGeneration() + 1)
	s.commit(t, old, o)
	return nil
}

// ByKind returns the resource that holds objects of a kind.
func (s *Store) ByKind(gvk schema.GroupVersionKind) (*Resource, bool) {
	for _, t := range s.tables {
		if t.res.GVK() == gvk {
			return t.res, true
		}
	}
	return nil, false
}
