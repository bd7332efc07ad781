package nvml

import (
	"errors"
	"testing"
	"time"

	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/inventory/nvml/watchdog"
)

// A symbol that the driver lacks ends the process when it is called, so it never is.
func TestASymbolThatIsMissingIsNotCalled(t *testing.T) {
	a := &asker{ctx: t.Context(), watchdog: watchdog.New(time.Minute), session: &session{symbols: map[string]bool{symUUID: true}}}
	got := ask(a, symFabricV, func() (string, ret) { t.Error("called"); return "", 0 })
	if !errors.Is(got.Err, inventory.ErrNotSupported) || a.end != nil {
		t.Errorf("got %+v, end %v", got, a.end)
	}
	if got := ask(a, symUUID, func() (string, ret) { return "GPU-1", 0 }); got.Value != "GPU-1" || got.Err != nil {
		t.Errorf("got %+v", got)
	}
}
