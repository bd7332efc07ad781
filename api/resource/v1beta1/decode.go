package v1beta1

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/json"
)

// UnknownKindError is returned for an object of another group, version or kind.
type UnknownKindError struct {
	APIVersion string
	Kind       string
}

// Error implements error.
func (e *UnknownKindError) Error() string {
	return fmt.Sprintf("apiVersion %q with kind %q is not known: allowed are kinds %q and %q of apiVersion %q",
		e.APIVersion, e.Kind, KindGpuConfig, KindMigDeviceConfig, APIVersion)
}

// Decode reads what a user wrote. A field that does not exist, one that is there twice and a
// value of the wrong type are errors that name the field. Nothing is defaulted or validated.
func Decode(raw []byte) (Config, error) {
	config, err := empty(raw)
	if err != nil {
		return nil, err
	}
	mistakes, err := json.UnmarshalStrict(raw, config)
	if err != nil {
		return nil, explain(config, err)
	}
	if len(mistakes) > 0 {
		return nil, fmt.Errorf("%s: %w", config.ConfigKind(), errors.Join(mistakes...))
	}
	return config, nil
}

// DecodeStored reads what an earlier or later version of the driver has stored: fields that
// this version does not know are passed over, so that they never stand in the way of undoing.
func DecodeStored(raw []byte) (Config, error) {
	config, err := empty(raw)
	if err != nil {
		return nil, err
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, config); err != nil {
		return nil, explain(config, err)
	}
	return config, nil
}

// Load is what a user's configuration means: decoded strictly, defaulted and valid.
func Load(raw []byte) (Config, error) {
	config, err := Decode(raw)
	if err != nil {
		return nil, err
	}
	config = config.Defaulted()
	if errs := config.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", config.ConfigKind(), errs.ToAggregate())
	}
	return config, nil
}

// empty makes the value for the kind that raw says it is.
func empty(raw []byte) (Config, error) {
	var header struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &header); err != nil {
		return nil, fmt.Errorf("not a JSON object with apiVersion and kind: %w", err)
	}
	for _, config := range []Config{&GpuConfig{}, &MigDeviceConfig{}} {
		if header.APIVersion == APIVersion && header.Kind == config.ConfigKind() {
			return config, nil
		}
	}
	return nil, &UnknownKindError{APIVersion: header.APIVersion, Kind: header.Kind}
}

// explain puts a wrong type into the words of the API instead of those of Go.
func explain(config Config, err error) error {
	var mismatch *gojson.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return fmt.Errorf("%s: %w", config.ConfigKind(), err)
	}
	return fmt.Errorf("%s: %s: is a %s, must be %s: %w",
		config.ConfigKind(), mismatch.Field, mismatch.Value, jsonType(mismatch), err)
}

func jsonType(e *gojson.UnmarshalTypeError) string {
	kind := e.Type.Kind().String()
	switch {
	case kind == "int":
		return "a whole number"
	case kind == "bool":
		return "true or false"
	case slices.Contains([]string{"struct", "map", "ptr"}, kind):
		return "an object"
	}
	return "a " + kind
}
