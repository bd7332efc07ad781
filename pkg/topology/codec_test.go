package topology_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/inventory/inventorytest"
	"github.com/gpu-dra/driver/pkg/topology"
)

func encode(t testing.TB, m topology.Memory) []byte {
	t.Helper()
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, m := topology.Resolve(drawMachine(t), topology.Memory{})
		data, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := topology.Decode(data)
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		again, err := got.Encode()
		if diff := cmp.Diff(string(data), string(again)); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}

const newerFile = `{"version":1,"boards":[{"uuid":"a","pci":"0000:01:00.0","links":1,"peers":["b"],"slot":"J1"},
{"uuid":"b","pci":"0000:02:00.0","links":1,"peers":["a"]}],"domains":[{"value":"v","members":["a","b"],"since":3}],"written":"by a newer one"}`

func TestUnknownMembersAreKept(t *testing.T) {
	m, err := topology.Decode([]byte(newerFile))
	if err != nil {
		t.Fatal(err)
	}
	// They also survive a snapshot that changes nothing about these boards.
	_, m = topology.Resolve(inventorytest.TwoIslands(), m)
	out := string(encode(t, m))
	for _, want := range []string{`"slot": "J1"`, `"since": 3`, `"written": "by a newer one"`} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is lost:\n%s", want, out)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	board := func(uuid, peers string) string {
		return `{"uuid":"` + uuid + `","pci":"0000:01:00.0","links":1,"peers":[` + peers + `]}`
	}
	memory := func(boards, domains string) string {
		return `{"version":1,"boards":[` + boards + `],"domains":[` + domains + `]}`
	}
	ab := board("a", `"b"`) + "," + board("b", `"a"`)
	abc := board("a", `"b"`) + "," + board("b", `"a","c"`) + "," + board("c", `"b"`)
	for name, tc := range map[string]struct{ data, want string }{
		"nothing":            {``, "EOF"},
		"not JSON":           {`{`, "EOF"},
		"no version":         {`{}`, "version is 0"},
		"newer version":      {`{"version":2}`, "version is 2"},
		"double member":      {`{"version":1,"version":1}`, "duplicate"},
		"bad address":        {`{"version":1,"boards":[{"uuid":"a","pci":"x"}]}`, "PCI address"},
		"no UUID":            {memory(board("", `"b"`), ""), "boards[0].uuid"},
		"boards not sorted":  {memory(board("b", `"a"`)+","+board("a", `"b"`), ""), "boards[1].uuid"},
		"board twice":        {memory(board("a", `"b"`)+","+board("a", `"b"`), ""), "boards[1].uuid"},
		"board without peer": {memory(board("a", ``), ""), "boards[0].peers"},
		"peers not sorted":   {memory(board("a", `"c","b"`), ""), "boards[0].peers"},
		"unknown peer":       {memory(board("a", `"z"`), ""), "in return"},
		"its own peer":       {memory(board("a", `"a"`), ""), "in return"},
		"no value":           {memory(ab, `{"value":"","members":["a","b"]}`), "domains[0].value"},
		"long value":         {memory(ab, `{"value":"`+strings.Repeat("x", 65)+`","members":["a","b"]}`), "domains[0].value"},
		"one member":         {memory(ab, `{"value":"v","members":["a"]}`), "domains[0].members"},
		"member twice":       {memory(ab, `{"value":"v","members":["a","b"]},{"value":"w","members":["a","b"]}`), "another domain"},
		"value twice":        {memory(ab, `{"value":"v","members":["a","b"]},{"value":"v","members":["a","b"]}`), "domains[1].value"},
		"not all-to-all":     {memory(abc, `{"value":"v","members":["a","b","c"]}`), "not peers"},
		"unknown member":     {memory(ab, `{"value":"v","members":["a","z"]}`), "not peers"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := topology.Decode([]byte(tc.data))
			if !errors.Is(err, topology.ErrMemory) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// A memory that lost its domains but not its boards finds them again.
func TestDomainsAreFoundAgain(t *testing.T) {
	s := inventorytest.TwoIslands()
	want, m := topology.Resolve(s, topology.Memory{})
	m.Domains = nil
	got, _ := resolve(t, s, m)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(newerFile))
	_, m := topology.Resolve(inventorytest.CubeMesh(), topology.Memory{})
	f.Add(encode(f, m))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := topology.Decode(data)
		if err != nil {
			if !errors.Is(err, topology.ErrMemory) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		// Whatever a file says, the answer for a real machine keeps its promises.
		s := inventorytest.CubeMesh()
		a, next := topology.Resolve(s, m)
		if err := topology.CheckAssignment(s, a, next); err != nil {
			t.Fatal(err)
		}
		if _, err := topology.Decode(encode(t, next)); err != nil {
			t.Fatalf("what we write we cannot read: %v", err)
		}
	})
}

func TestStore(t *testing.T) {
	store := topology.Store{Path: filepath.Join(t.TempDir(), "nvlink.json")}
	if m, err := store.Load(); err != nil || len(m.Boards) != 0 {
		t.Fatalf("without a file: %v, %v", m, err)
	}
	_, m := topology.Resolve(inventorytest.TwoIslands(), topology.Memory{})
	for i, want := range []bool{true, false} {
		if wrote, err := store.Save(m); err != nil || wrote != want {
			t.Errorf("save %d: wrote %t, %v", i, wrote, err)
		}
	}
	got, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, got); diff != "" {
		t.Errorf("loaded:\n%s", diff)
	}
}

func TestStoreMovesABadFileAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nvlink.json")
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := topology.Store{Path: path}
	if _, err := store.Load(); !errors.Is(err, topology.ErrMemory) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
	if data, err := os.ReadFile(path + ".bad"); err != nil || string(data) != "torn" {
		t.Errorf("kept %q, %v", data, err)
	}
	if _, err := store.Load(); err != nil {
		t.Errorf("second load: %v", err)
	}
}

func TestStoreErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := (topology.Store{Path: dir}).Load(); err == nil || errors.Is(err, topology.ErrMemory) {
		t.Errorf("reading a directory: %v", err)
	}
	missing := topology.Store{Path: filepath.Join(dir, "no", "nvlink.json")}
	if _, err := missing.Save(topology.Memory{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("writing into a missing directory: %v", err)
	}
}

// A downgrade must not take the file away from the release that wrote it.
func TestStoreLeavesANewerFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nvlink.json")
	s := topology.Store{Path: path}
	newer := []byte(`{"version":2}`)
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := s.Load()
	if !errors.Is(err, topology.ErrNewer) || !errors.Is(err, topology.ErrMemory) || len(m.Boards) != 0 {
		t.Errorf("load: %+v, %v", m, err)
	}
	if written, err := s.Save(topology.Memory{}); written || err != nil {
		t.Errorf("save: %t, %v", written, err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(newer) {
		t.Errorf("the file is %q (%v) afterwards", got, err)
	}
}
