// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Call is a request to evict or delete a pod that kube-apiserver has answered.
type Call struct {
	// Verb and Subresource are create and eviction, or delete and "".
	Verb, Subresource string
	// Namespace and Name identify the pod. UID is the precondition that the caller set.
	Namespace, Name string
	UID             types.UID
	// User sent the request, or was impersonated by the sender.
	User string
	// Code is the HTTP status of the answer.
	Code int32
	// RefusedBy is the name of the budget because of which the eviction was refused, or "".
	RefusedBy string
	// Received is the time at which kube-apiserver received the request, and Answered the time of
	// its response.
	Received, Answered time.Time
}

// Evicted reports whether an eviction was granted.
func (c *Call) Evicted() bool {
	return c.Subresource == "eviction" && c.Code == http.StatusCreated
}

// Deleted reports whether a pod was deleted.
func (c *Call) Deleted() bool {
	return c.Verb == "delete" && c.Subresource == "" && c.Code == http.StatusOK
}

// ReadCalls reads an audit log. It omits dry runs, and a last line without a newline, which
// kube-apiserver is still writing.
func ReadCalls(log io.Reader) ([]Call, error) {
	var calls []Call
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return calls, nil
		}
		if err != nil {
			return nil, err
		}
		call, err := parseCall(line)
		if err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		if call != nil {
			calls = append(calls, *call)
		}
	}
}

func parseCall(line []byte) (*Call, error) {
	var event auditv1.Event
	if err := json.Unmarshal(line, &event); err != nil {
		return nil, err
	}
	if event.Stage != auditv1.StageResponseComplete || event.ObjectRef == nil || event.ResponseStatus == nil {
		return nil, nil
	}
	if event.ObjectRef.Resource != "pods" {
		return nil, nil
	}
	call := &Call{
		Verb: event.Verb, Subresource: event.ObjectRef.Subresource, Namespace: event.ObjectRef.Namespace,
		Name: event.ObjectRef.Name, User: event.User.Username, Code: event.ResponseStatus.Code,
		Received: event.RequestReceivedTimestamp.Time, Answered: event.StageTimestamp.Time,
	}
	if event.ImpersonatedUser != nil {
		call.User = event.ImpersonatedUser.Username
	}
	call.RefusedBy = refusingBudget(event.ResponseStatus)
	if event.RequestObject == nil {
		return call, nil
	}
	options := &metav1.DeleteOptions{}
	if call.Subresource == "eviction" {
		var eviction policyv1.Eviction
		if err := json.Unmarshal(event.RequestObject.Raw, &eviction); err != nil {
			return nil, err
		}
		if eviction.DeleteOptions != nil {
			options = eviction.DeleteOptions
		}
	} else if err := json.Unmarshal(event.RequestObject.Raw, options); err != nil {
		return nil, err
	}
	if slices.Contains(options.DryRun, metav1.DryRunAll) {
		return nil, nil
	}
	if options.Preconditions != nil && options.Preconditions.UID != nil {
		call.UID = *options.Preconditions.UID
	}
	return call, nil
}

// refusingBudget returns the name of the budget because of which an eviction was refused, or "".
// The response has the name only in a sentence: "The disruption budget web needs 9 healthy pods and
// has 9 currently", "The disruption budget web is still being processed by the server."
func refusingBudget(answer *metav1.Status) string {
	if answer.Code != http.StatusTooManyRequests || answer.Details == nil {
		return ""
	}
	for _, cause := range answer.Details.Causes {
		if words := strings.Fields(cause.Message); cause.Type == policyv1.DisruptionBudgetCause && len(words) > 3 {
			return words[3]
		}
	}
	return ""
}

// EvictedTwice describes the pods of which more than one eviction was granted, and the evictions
// without the UID of a pod: they may hit another pod of the same name.
func EvictedTwice(log Log) []string {
	var found []string
	granted := map[types.UID]int{}
	for _, call := range log.Calls {
		if !call.Evicted() {
			continue
		}
		if call.UID == "" {
			found = append(found,
				fmt.Sprintf("%s evicted pod %s/%s without its UID", call.User, call.Namespace, call.Name))
			continue
		}
		if granted[call.UID]++; granted[call.UID] == 2 {
			found = append(found,
				fmt.Sprintf("pod %s/%s (%s) was evicted more than once", call.Namespace, call.Name, call.UID))
		}
	}
	return found
}

// AuditLog is the part of an audit log after a certain point.
type AuditLog struct {
	path   string
	offset int64
}

// OpenAuditLog returns the part of an audit log after its current end. It omits a line that is
// being written now. It fails if the log does not exist.
func OpenAuditLog(path string) (AuditLog, error) {
	info, err := os.Stat(path)
	if err != nil {
		return AuditLog{}, fmt.Errorf("the cluster keeps no audit log (AUDIT=true make cluster-up): %w", err)
	}
	return AuditLog{path, info.Size()}, nil
}

// Calls returns the calls in the new lines.
func (l AuditLog) Calls() ([]Call, error) {
	var calls []Call
	err := l.Read(func(log io.Reader) (err error) {
		calls, err = ReadCalls(log)
		return err
	})
	return calls, err
}

// Read passes the new lines to a function. The last line may be incomplete.
func (l AuditLog) Read(read func(log io.Reader) error) error {
	file, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer file.Close()
	// Start at the last byte before, which ends a line unless one was being written.
	if _, err := file.Seek(max(l.offset-1, 0), io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewReader(file)
	if l.offset > 0 {
		if _, err := lines.ReadBytes('\n'); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return read(lines)
}
