package journal

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpu-dra/driver/pkg/pci"
)

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
