package nvml

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/pci"
)

func TestCUDAVersion(t *testing.T) {
	if got, err := cudaVersion(12080); got != (inventory.Version{Major: 12, Minor: 8}) || err != nil {
		t.Errorf("CUDA version is %+v, %v", got, err)
	}
}

func info(text string) nvml.PciInfo {
	var p nvml.PciInfo
	for i := range text {
		p.BusId[i] = int8(text[i])
	}
	return p
}

func TestAddresses(t *testing.T) {
	if got, err := addressOf(info("00000008:01:00.0")); got != (pci.Address{Domain: 8, Bus: 1}) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	full := info(strings.Repeat("f", 32))
	if got, err := addressOf(full); err == nil {
		t.Errorf("a field without an end gives %v", got)
	}
	for text, want := range map[string]error{"FFFFFFFF:FF:FF.0": inventory.ErrNotSupported, "00000000:1A:00.0": nil} {
		if _, err := peerAddress(info(text)); (err == nil) != (want == nil) || want != nil && !strings.Contains(err.Error(), want.Error()) {
			t.Errorf("%s gives %v, want %v", text, err, want)
		}
	}
	if _, err := peerAddress(info("")); err == nil || strings.Contains(err.Error(), inventory.ErrNotSupported.Error()) {
		t.Errorf("an empty address gives %v", err)
	}
}

func FuzzAddressOf(f *testing.F) {
	f.Add([]byte("00000008:01:00.0"))
	f.Add([]byte("FFFFFFFF:FF:FF.0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p nvml.PciInfo
		for i := range min(len(text), len(p.BusId)) {
			p.BusId[i] = int8(text[i])
		}
		a, err := addressOf(p)
		if err != nil {
			return
		}
		if back, err := addressOf(info(a.String())); err != nil || back != a {
			t.Errorf("%q became %v and then %v, %v", text, a, back, err)
		}
	})
}
