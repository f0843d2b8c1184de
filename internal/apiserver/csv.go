package apiserver

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// wantsCSV says that a get or a list asks for comma-separated values before anything else that is served (row 52).
func wantsCSV(r *http.Request, info *apirequest.RequestInfo) bool {
	if r.Method != http.MethodGet || info.Verb != "get" && info.Verb != "list" || info.Subresource != "" {
		return false
	}
	for _, clause := range goautoneg.ParseAccept(r.Header.Get("Accept")) {
		switch clause.Type + "/" + clause.SubType {
		case "text/csv":
			return true
		case "application/json", "application/yaml", "application/cbor", "application/vnd.kubernetes.protobuf", "application/*", "*/*":
			return false
		}
	}
	return false
}

// serveCSV answers with the columns and rows of the Table that a request for one would get.
func (s *Server) serveCSV(w http.ResponseWriter, r *http.Request, info *apirequest.RequestInfo) {
	asked := r.Clone(r.Context())
	asked.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	asked.Header.Del("Accept-Encoding")
	query := asked.URL.Query()
	query.Set("includeObject", string(metav1.IncludeNone))
	asked.URL.RawQuery = query.Encode()
	reader, writer := io.Pipe()
	a := &csvAnswer{ResponseWriter: w, table: writer, converted: make(chan error, 1)}
	go func() { // ends with the answer
		err := convertTable(reader, w)
		reader.CloseWithError(err)
		a.converted <- err
	}()
	defer writer.CloseWithError(http.ErrAbortHandler) // if the handler panics
	s.serveResource(a, asked, info)
	writer.Close()
	if err := <-a.converted; err != nil && a.code == http.StatusOK {
		panic(http.ErrAbortHandler) // nobody must take this for the whole answer
	}
}

// csvAnswer is what a handler writes a Table to, or why there is none. The handler cannot flush it: somebody else
// writes to the client.
type csvAnswer struct {
	http.ResponseWriter
	table     *io.PipeWriter
	converted chan error
	code      int
}

// WriteHeader implements http.ResponseWriter.
func (a *csvAnswer) WriteHeader(code int) {
	a.code = code
	if code == http.StatusOK {
		a.Header().Set("Content-Type", "text/csv;charset=utf-8")
		a.Header().Del("Content-Length")
	}
	a.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (a *csvAnswer) Write(p []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.code == http.StatusOK {
		return a.table.Write(p)
	}
	return a.ResponseWriter.Write(p)
}

// convertTable writes a Table in JSON as comma-separated values, row by row (RFC 4180).
func convertTable(from io.Reader, to io.Writer) error {
	table, values := json.NewDecoder(from), csv.NewWriter(to)
	values.UseCRLF = true
	table.UseNumber()
	if _, err := table.Token(); err != nil { // it opens
		return err
	}
	for table.More() {
		field, err := table.Token()
		if err != nil {
			return err
		}
		switch field {
		case "columnDefinitions":
			var columns []metav1.TableColumnDefinition
			if err := table.Decode(&columns); err != nil {
				return err
			}
			var names []string
			for _, c := range columns {
				names = append(names, c.Name)
			}
			err = values.Write(names)
		case "rows":
			err = convertRows(table, values)
		default:
			err = table.Decode(&json.RawMessage{})
		}
		if err != nil {
			return err
		}
	}
	values.Flush()
	return values.Error()
}

func convertRows(table *json.Decoder, values *csv.Writer) error {
	if open, err := table.Token(); err != nil || open == nil { // null has none
		return err
	}
	for table.More() {
		var row struct {
			Cells []any `json:"cells"`
		}
		if err := table.Decode(&row); err != nil {
			return err
		}
		cells := make([]string, len(row.Cells))
		for i, cell := range row.Cells {
			if cell != nil {
				cells[i] = fmt.Sprint(cell)
			}
		}
		if err := values.Write(cells); err != nil {
			return err
		}
	}
	_, err := table.Token() // it closes
	return err
}
