package v1beta1

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// minMemory is the unit of an MPS memory limit: the control daemon takes whole MiB.
	minMemory = 1 << 20
	// maxMemory is above any board and far below the amount at which quantities saturate, so
	// that a slip of the unit is an error and not the largest number.
	maxMemory = 1 << 50
)

// Memory is an amount of device memory in the notation of Kubernetes quantities ("4Gi"). It
// keeps the text as written, so that a wrong one can be reported with its field.
type Memory string

// Bytes is the amount in bytes. The error says what is wrong with the text.
func (m Memory) Bytes() (int64, error) {
	q, err := resource.ParseQuantity(string(m))
	switch {
	case err != nil:
		return 0, fmt.Errorf("must be a quantity such as 512Mi or 4Gi: %w", err)
	case q.CmpInt64(minMemory) < 0:
		return 0, errors.New("must be at least 1Mi")
	case q.CmpInt64(maxMemory) > 0:
		return 0, errors.New("must be at most 1Pi")
	}
	return q.Value(), nil
}

// UnmarshalJSON takes a string or, as quantities do, a bare number. Anything else is kept as
// written and found by Bytes.
func (m *Memory) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil || string(data) == "null" {
		text = string(data)
	}
	*m = Memory(text)
	return nil
}
