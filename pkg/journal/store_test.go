package journal

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/pci"
)

const someUID = types.UID("6fdc3a9a-58a4-4a3b-8a6b-2d6f3a1f9c01")

func someRecord(uid types.UID) *Record {
	share := types.UID("0b0e6f6a-9d1e-4f0e-8a54-4a5ed4f2e7aa")
	return &Record{
		Namespace: "team-a", Name: "train-gpu", UID: uid, State: StatePrepared,
		BootID:  "b0a7c2e4-1111-4222-8333-444455556666",
		Created: time.Date(2026, 11, 29, 8, 30, 0, 0, time.UTC),
		Devices: []Device{{
			Request: "gpu/large", Pool: "node-1", Name: "gpu-0000-1a-00-0", ShareID: &share, Kind: "gpu",
			PCI: pci.Address{Bus: 0x1a}, GPUUUID: "GPU-5f2d7c9e-0000-4000-8000-000000000001", Partition: "1g@0",
			CDIDeviceIDs: []string{"gpu.nvidia.com/claim=a", "gpu.nvidia.com/driver=base"},
			Steps: []Step{{
				Kind: "mig-create", Params: jsontext.Value(`{"profile":14}`), Done: true,
				Output: jsontext.Value(`{"gi":3}`),
			}},
		}, {
			Request: "admin", Pool: "node-1", Name: "gpu-0000-1b-00-0", AdminAccess: true, Kind: "gpu",
			PCI: pci.Address{Bus: 0x1b}, GPUUUID: "GPU-5f2d7c9e-0000-4000-8000-000000000002",
		}},
	}
}

func open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func save(t testing.TB, s *Store, r *Record) {
	t.Helper()
	if err := s.Save(r); err != nil {
		t.Fatal(err)
	}
}

// files lists what lies in the journal, the quarantine left out.
func files(t testing.TB, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != quarantineDir {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestSaveLoadDelete(t *testing.T) {
	s := open(t)
	if _, err := s.Load(someUID); !errors.Is(err, ErrNotFound) {
		t.Fatalf("Load of nothing: %v", err)
	}
	want := someRecord(someUID)
	for _, state := range []State{StateStarted, StatePrepared} {
		want.State = state
		save(t, s, want)
		got, err := s.Load(someUID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-saved +loaded:\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{string(someUID) + ".json"}, files(t, s)); diff != "" {
		t.Errorf("files: %s", diff)
	}
	for range 2 {
		if err := s.Delete(someUID); err != nil {
			t.Fatal(err)
		}
	}
	if left := files(t, s); left != nil {
		t.Errorf("left after delete: %v", left)
	}
}

func TestBadFiles(t *testing.T) {
	good, err := encode(someRecord(someUID))
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)-10] ^= 1
	other, err := encode(someRecord("another"))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "empty"},
		{"zeros", make([]byte, 4096), "header line is missing"},
		{"torn", good[:len(good)/2], "torn"},
		{"torn by one byte", good[:len(good)-1], "torn"},
		{"torn header", good[:20], "header line is missing"},
		{"appended", append(append([]byte(nil), good...), "more"...), "torn"},
		{"flipped bit", flipped, "checksum"},
		{"foreign", []byte("{\"checksum\":1}\n"), "not that of a claim record"},
		{"other claim", other, "record of claim another"},
		{"not JSON", framed("nonsense"), "decode"},
		{"wrong type", framed(`{"uid":5}`), "decode"},
		{"no UID", framed(`{}`), "is empty"},
		{"no version", []byte("gpu-claim-record x sha256=a bytes=1\n"), "no format version"},
		{"no sum", []byte("gpu-claim-record 1 sha=a bytes=1\n"), "no sha256"},
		{"short header", []byte("gpu-claim-record 1\n"), "number of fields"},
		{"huge length", []byte("gpu-claim-record 1 sha256=" + strings.Repeat("0", 64) + " bytes=999999999999\n"), "no length"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t)
			save(t, s, someRecord("neighbour"))
			if err := os.WriteFile(s.Path(someUID), tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			checkBad(t, s, tt.want)
		})
	}
	t.Run("directory", func(t *testing.T) {
		s := open(t)
		save(t, s, someRecord("neighbour"))
		if err := os.Mkdir(s.Path(someUID), 0o700); err != nil {
			t.Fatal(err)
		}
		checkBad(t, s, "not a regular file")
	})
}

// checkBad expects one bad record beside a good neighbour, and that it can be set aside.
func checkBad(t *testing.T, s *Store, want string) {
	t.Helper()
	_, err := s.Load(someUID)
	corrupt := new(CorruptError)
	if !errors.As(err, &corrupt) || corrupt.UID != someUID || !strings.Contains(err.Error(), want) {
		t.Fatalf("Load: %v, want a CorruptError with %q", err, want)
	}
	records, bad, err := s.List()
	if err != nil || len(records) != 1 || len(bad) != 1 || bad[0].UID != someUID {
		t.Fatalf("List: %d records, bad %v, %v", len(records), bad, err)
	}
	aside, err := s.Quarantine(someUID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(aside); err != nil {
		t.Errorf("the bad file was not kept: %v", err)
	}
	if _, err := s.Load(someUID); !errors.Is(err, ErrNotFound) {
		t.Errorf("Load after quarantine: %v", err)
	}
	if _, bad, err := s.List(); err != nil || bad != nil {
		t.Errorf("List after quarantine: bad %v, %v", bad, err)
	}
}

func TestForeignNamesAreReported(t *testing.T) {
	s := open(t)
	for _, name := range []string{"README", "-x.json", "a b.json", ".hidden", ".x.json"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, bad, err := s.List()
	if err != nil || records != nil || len(bad) != 5 {
		t.Fatalf("List: %v, %v, %v", records, bad, err)
	}
	for _, b := range bad {
		if b.UID != "" || b.Err == nil {
			t.Errorf("bad entry %+v", b)
		}
	}
}

// A file-size limit stops a write in the middle, as a full disk does.
func TestFailedWriteKeepsTheOldRecord(t *testing.T) {
	s := open(t)
	old := someRecord(someUID)
	old.State = StateStarted
	save(t, s, old)
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	small := limit
	small.Cur = 100
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	err := s.Save(someRecord(someUID))
	if err2 := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err2 != nil {
		t.Fatal(err2)
	}
	failed := new(WriteError)
	if !errors.As(err, &failed) || !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("Save: %v", err)
	}
	got, err := s.Load(someUID)
	if err != nil || cmp.Diff(old, got) != "" {
		t.Errorf("the old record: %v\n%s", err, cmp.Diff(old, got))
	}
	if names := files(t, s); len(names) != 1 {
		t.Errorf("litter: %v", names)
	}
}

func TestFailedRenameLeavesNoLitter(t *testing.T) {
	s := open(t)
	if err := os.MkdirAll(filepath.Join(s.Path(someUID), "inner"), 0o700); err != nil {
		t.Fatal(err)
	}
	failed := new(WriteError)
	if err := s.Save(someRecord(someUID)); !errors.As(err, &failed) {
		t.Errorf("Save over a directory: %v", err)
	}
	if err := s.Delete(someUID); !errors.As(err, &failed) {
		t.Errorf("Delete of a full directory: %v", err)
	}
	if names := files(t, s); len(names) != 1 {
		t.Errorf("litter: %v", names)
	}
}

func TestMessagesSayWhatToDo(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.ENOSPC: "free space", syscall.EDQUOT: "free space", syscall.EROFS: "mount it writable", syscall.EIO: "input/output",
	} {
		err := &WriteError{Op: "write record", Path: "/p", Err: fmt.Errorf("sync: %w", errno)}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/p") || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

func TestOpenSweepsOldTemporaryFiles(t *testing.T) {
	s := open(t)
	save(t, s, someRecord(someUID))
	past := time.Now().Add(-time.Hour)
	for name, modified := range map[string]time.Time{
		"." + string(someUID) + ".json123": past, ".x.json9": time.Now(), ".foreign": past,
	} {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(s.dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".foreign", ".x.json9", string(someUID) + ".json"}, files(t, s)); diff != "" {
		t.Error(diff)
	}
	if records, bad, err := s.List(); len(records) != 1 || len(bad) != 1 || err != nil {
		t.Errorf("List: %v %v %v", records, bad, err)
	}
}

// Claims do not wait for each other, and no one's write is another's.
func TestManyClaimsAtOnce(t *testing.T) {
	s := open(t)
	second, err := Open(s.dir) // as another process would
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			uid := types.UID(fmt.Sprintf("claim-%d", i))
			want := someRecord(uid)
			for range 5 {
				want.State = StateStarted
				err1 := s.Save(want)
				want.State = StatePrepared
				err2 := second.Save(want)
				got, err3 := s.Load(uid)
				if err := errors.Join(err1, err2, err3); err != nil {
					t.Error(err)
				} else if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			}
			if i%2 == 0 {
				if err := second.Delete(uid); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	records, bad, err := s.List()
	if err != nil || bad != nil || len(records) != 8 {
		t.Errorf("%d records, bad %v, %v", len(records), bad, err)
	}
	for i := 1; i < len(records); i++ {
		if records[i-1].UID >= records[i].UID {
			t.Errorf("%s comes before %s", records[i-1].UID, records[i].UID)
		}
	}
}

func TestQuarantineKeepsAll(t *testing.T) {
	s := open(t)
	if _, err := s.Quarantine(someUID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("set aside what is not there: %v", err)
	}
	seen := map[string]bool{}
	for i := range 3 {
		if err := os.WriteFile(s.Path(someUID), fmt.Append(nil, "bad ", i), 0o600); err != nil {
			t.Fatal(err)
		}
		aside, err := s.Quarantine(someUID)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(aside)
		if err != nil || string(text) != fmt.Sprint("bad ", i) || seen[aside] {
			t.Errorf("%s holds %q, %v", aside, text, err)
		}
		seen[aside] = true
	}
}

func TestOpenErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failed := new(WriteError)
	if _, err := Open(file); !errors.As(err, &failed) {
		t.Errorf("Open of a file: %v", err)
	}
	s := &Store{dir: file}
	if _, _, err := s.List(); err == nil {
		t.Error("List of a file succeeds")
	}
}

// The time of a save or load must not depend on how many records there are.
func BenchmarkStore(b *testing.B) {
	for _, present := range []int{0, 256, 1000} {
		s := open(b)
		for i := range present {
			save(b, s, someRecord(types.UID(fmt.Sprintf("present-%d", i))))
		}
		r := someRecord(someUID)
		b.Run(fmt.Sprintf("save/%d", present), func(b *testing.B) {
			for b.Loop() {
				save(b, s, r)
			}
			info, err := os.Stat(s.Path(someUID))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(info.Size()), "file-bytes")
		})
		b.Run(fmt.Sprintf("load/%d", present), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Load(someUID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestCountLooksAtNamesOnly(t *testing.T) {
	s := open(t)
	counts := func(want int) {
		t.Helper()
		if n, err := s.Count(); n != want || err != nil {
			t.Errorf("%d records counted (%v), want %d", n, err, want)
		}
	}
	counts(0)
	save(t, s, someRecord("a"))
	save(t, s, someRecord("b"))
	for _, name := range []string{s.Path("c"), filepath.Join(filepath.Dir(s.Path("a")), ".a.json123")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The bad c counts, the temporary file does not.
	counts(3)
	if err := os.RemoveAll(filepath.Dir(s.Path("a"))); err != nil {
		t.Fatal(err)
	}
	// Not knowing is not the same as none: what hangs on it would remove records.
	if _, err := s.Count(); err == nil {
		t.Error("a directory that cannot be read counts as empty")
	}
}

func TestRemoveEmptyKeepsWhatIsThere(t *testing.T) {
	s := open(t)
	dir := filepath.Dir(s.Path("a"))
	save(t, s, someRecord("a"))
	if err := s.RemoveEmpty(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load("a"); err != nil {
		t.Fatalf("the record: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, quarantineDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Quarantine("a"); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveEmpty(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, quarantineDir)); err != nil || len(left) != 1 {
		t.Errorf("what was set aside: %v, %v", left, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, quarantineDir)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.RemoveEmpty(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("the empty journal is still there: %v", err)
		}
	}
}
