package kubeapi

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/gpu-dra/driver/test/kubeapi/internal/storage"
)

// maxBody is the API server's limit of a request body in bytes.
const maxBody = 3 << 20

// negotiate picks the encoding of an answer. Entries with parameters such as as=Table ask for views
// that the server does not make; clients list a plain encoding behind them.
func negotiate(req *http.Request, stream bool) (runtime.SerializerInfo, error) {
	accept := req.Header.Get("Accept")
	if accept == "" {
		accept = runtime.ContentTypeJSON
	}
	for _, entry := range strings.Split(accept, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(entry))
		if err != nil || params["as"] != "" {
			continue
		}
		if media == "*/*" || media == "application/*" {
			media = runtime.ContentTypeJSON
		}
		info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
		if ok && (!stream || info.StreamSerializer != nil) {
			return info, nil
		}
	}
	return runtime.SerializerInfo{}, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: fmt.Sprintf("Accept: %q has no encoding of this server; use %s or %s", accept, runtime.ContentTypeJSON, runtime.ContentTypeProtobuf),
	}}
}

// respond writes o in the encoding that the client asked for.
func respond(w http.ResponseWriter, req *http.Request, code int, o runtime.Object) error {
	info, err := negotiate(req, false)
	if err != nil {
		info, _ = runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
		o, code = statusOf(err)
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	if err := info.Serializer.Encode(o, w); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// statusOf turns any error into the Status object and the HTTP code that a client expects.
func statusOf(err error) (*metav1.Status, int) {
	var status metav1.Status
	if known, ok := err.(apierrors.APIStatus); ok {
		status = known.Status()
	} else {
		status = apierrors.NewInternalError(err).Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &status, int(status.Code)
}

// body reads the request's body within the server's limit.
func body(w http.ResponseWriter, req *http.Request) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("read body: %v (limit %d bytes)", err, maxBody))
	}
	return data, nil
}

// encodingOf finds the serializer of a request's content type, JSON where none is given.
func encodingOf(contentType string) (runtime.SerializerInfo, string, error) {
	media := runtime.ContentTypeJSON
	if contentType != "" {
		parsed, _, err := mime.ParseMediaType(contentType)
		if err != nil {
			return runtime.SerializerInfo{}, "", apierrors.NewBadRequest(fmt.Sprintf("Content-Type %q: %v", contentType, err))
		}
		media = parsed
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
	if !ok {
		return runtime.SerializerInfo{}, "", storage.Unsupported(media)
	}
	return info, media, nil
}

// decodeObject reads the body of a create or update.
func decodeObject(w http.ResponseWriter, req *http.Request, r *storage.Resource) (storage.Object, error) {
	data, err := body(w, req)
	if err != nil {
		return nil, err
	}
	info, media, err := encodingOf(req.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	want := r.GVK()
	made, got, err := info.Serializer.Decode(data, &want, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode %s as %s: %v", want.Kind, media, err))
	}
	if got != nil && *got != want {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %s, the request is for a %s", got, want))
	}
	o, ok := made.(storage.Object)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is a %T, not a %s", made, r.Kind))
	}
	return o, nil
}

// streamTo starts a watch answer and returns its encoder.
func streamTo(w http.ResponseWriter, req *http.Request) (*restwatch.Encoder, error) {
	info, err := negotiate(req, true)
	if err != nil {
		return nil, err
	}
	media := info.MediaType
	if media != runtime.ContentTypeJSON {
		media += ";stream=watch"
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(http.StatusOK)
	frames := info.StreamSerializer.NewFrameWriter(w)
	return restwatch.NewEncoder(streaming.NewEncoder(frames, info.StreamSerializer.Serializer), info.Serializer), nil
}
