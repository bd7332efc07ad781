package journal

import (
	"crypto/sha256"
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
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

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

func TestGoldenV1(t *testing.T) {
	s := open(t)
	golden, err := os.ReadFile("testdata/v1.record")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(someUID), golden, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load(someUID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(someRecord(someUID), got); diff != "" {
		t.Errorf("-want +golden:\n%s", diff)
	}
	// What is written today is byte for byte what was written then.
	save(t, s, got)
	again, err := os.ReadFile(s.Path(someUID))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), string(again)); diff != "" {
		t.Errorf("-golden +written:\n%s", diff)
	}
}

// framed puts a valid header before a body.
func framed(body string) []byte {
	sum := sha256.Sum256([]byte(body))
	return fmt.Appendf(nil, "gpu-claim-record 1 sha256=%x bytes=%d\n%s\n", sum, len(body), body)
}

func TestUnknownFieldsSurvive(t *testing.T) {
	s := open(t)
	body := `{"namespace":"a","name":"b","uid":"` + string(someUID) + `","state":"prepared","bootID":"x","created":"2026-01-02T03:04:05Z",` +
		`"devices":[{"request":"r","pool":"p","name":"n","kind":"gpu","pci":"0000:1a:00.0","gpuUUID":"G",` +
		`"steps":[{"kind":"k","params":{"a":1},"retries":7}],"health":"ok"}],"future":{"x":[1,2]}}`
	if err := os.WriteFile(s.Path(someUID), framed(body), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := s.Load(someUID)
	if err != nil {
		t.Fatal(err)
	}
	r.State = StateStarted
	save(t, s, r)
	data, err := os.ReadFile(s.Path(someUID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"retries":7`, `"health":"ok"`, `"future":{"x":[1,2]}`, `"state":"started"`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is missing in %s", want, data)
		}
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

func TestNewerFormatIsLeftAlone(t *testing.T) {
	s := open(t)
	data := []byte("gpu-claim-record 2 blake3=00 whatever\nbinary")
	if err := os.WriteFile(s.Path(someUID), data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Load(someUID)
	newer := new(NewerFormatError)
	if !errors.As(err, &newer) || newer.Version != 2 || newer.Path != s.Path(someUID) || !strings.Contains(err.Error(), "downgrade") {
		t.Fatalf("Load: %v", err)
	}
	_, bad, err := s.List()
	if err != nil || len(bad) != 1 || !errors.As(bad[0].Err, &newer) {
		t.Fatalf("List: %v, %v", bad, err)
	}
	if got, err := os.ReadFile(s.Path(someUID)); err != nil || string(got) != string(data) {
		t.Errorf("the file was touched: %q, %v", got, err)
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

func TestCheckUID(t *testing.T) {
	for _, uid := range []types.UID{someUID, "a", "A-9", "0123456789abcdef0123456789abcdef"} {
		if err := CheckUID(uid); err != nil {
			t.Errorf("%q: %v", uid, err)
		}
	}
	s := open(t)
	for _, uid := range []types.UID{"", ".", "..", "../x", "a/b", "a\x00b", "-a", "a-", "ä", "a.b", types.UID(strings.Repeat("a", 65))} {
		_, loadErr := s.Load(uid)
		_, quarantineErr := s.Quarantine(uid)
		for _, err := range []error{CheckUID(uid), loadErr, s.Save(&Record{UID: uid}), s.Delete(uid), quarantineErr} {
			if err == nil || !strings.Contains(err.Error(), "claim UID") {
				t.Errorf("%q: %v", uid, err)
			}
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

// Random records come back equal, and a change of any byte is noticed.
func TestRoundTripProperty(t *testing.T) {
	text := rapid.StringMatching(`[a-zA-Z0-9./ "\\ü-]{0,20}`)
	uid := rapid.StringMatching(`[a-z0-9]{1,8}`)
	rapid.Check(t, func(t *rapid.T) {
		want := &Record{
			Namespace: text.Draw(t, "ns"), Name: text.Draw(t, "name"), UID: types.UID(uid.Draw(t, "uid")),
			State: State(text.Draw(t, "state")), BootID: text.Draw(t, "boot"),
			Created: time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "created"), 0).UTC(),
			Devices: []Device{},
		}
		for range rapid.IntRange(0, 4).Draw(t, "devices") {
			want.Devices = append(want.Devices, Device{
				Request: text.Draw(t, "request"), Name: text.Draw(t, "device"), Kind: "gpu",
				PCI:       pci.Address{Domain: rapid.Uint32().Draw(t, "domain"), Bus: rapid.Byte().Draw(t, "bus")},
				Partition: text.Draw(t, "partition"), AdminAccess: rapid.Bool().Draw(t, "admin"),
			})
		}
		data, err := encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
		data[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := decode(data); err == nil {
			t.Fatalf("a flipped bit at %d was not noticed", at)
		}
	})
}

func FuzzDecode(f *testing.F) {
	good, err := encode(someRecord(someUID))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:40])
	f.Add(framed(`{"uid":"a","x":{"y":1}}`))
	f.Add([]byte("gpu-claim-record 7\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		// What was read can be written, and reads the same.
		again, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		r2, err := decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, r2, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzBody reaches the record behind the checksum.
func FuzzBody(f *testing.F) {
	f.Add(`{"uid":"a","devices":[{"pci":"0000:1a:00.0","steps":[{"kind":"k","params":[1]}]}],"z":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		r, err := decode(framed(body))
		if err != nil {
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(again); err != nil {
			t.Fatal(err)
		}
	})
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
