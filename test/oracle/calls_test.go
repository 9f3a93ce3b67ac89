// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// line returns a line of an audit log about pod shop/web.
func line(verb, subresource, code, body string) string {
	if body != "" {
		body = `,"requestObject":` + body
	}
	return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"1",` +
		`"stage":"ResponseComplete","requestURI":"/","verb":"` + verb + `","user":{"username":"haulout"},` +
		`"objectRef":{"resource":"pods","namespace":"shop","name":"web","apiVersion":"v1",` +
		`"subresource":"` + subresource +
		`"},"responseStatus":{"metadata":{},"code":` + code + `}` + body +
		`,"requestReceivedTimestamp":"2026-11-21T10:00:00.100000Z","stageTimestamp":"2026-11-21T10:00:00.250000Z"}` +
		"\n"
}

const (
	withUID = `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"web","namespace":"shop"},` +
		`"deleteOptions":{"preconditions":{"uid":"u"}}}`
	dryRun = `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"web","namespace":"shop"},` +
		`"deleteOptions":{"dryRun":["All"]}}`
	noUID = `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"web","namespace":"shop"}}`
)

func TestReadCalls(t *testing.T) {
	received := time.Date(2026, 11, 21, 10, 0, 0, 100e6, time.UTC)
	answered := received.Add(150 * time.Millisecond)
	for name, test := range map[string]struct {
		log  string
		want []Call
		bad  bool
	}{
		"an eviction": {
			log:  line("create", "eviction", "201", withUID),
			want: []Call{{"create", "eviction", "shop", "web", "u", "haulout", 201, "", received, answered}},
		},
		"an eviction by a user whom the sender impersonates": {
			log:  strings.Replace(line("create", "eviction", "201", withUID), `"objectRef"`, `"impersonatedUser":{"username":"alice"},"objectRef"`, 1),
			want: []Call{{"create", "eviction", "shop", "web", "u", "alice", 201, "", received, answered}},
		},
		"an eviction that was refused": {
			log:  line("create", "eviction", "429", withUID),
			want: []Call{{"create", "eviction", "shop", "web", "u", "haulout", 429, "", received, answered}},
		},
		"an eviction that a budget refused": {
			log: strings.Replace(
				line("create", "eviction", "429", withUID), `"code":429`,
				`"code":429,"details":{"causes":[{"reason":"DisruptionBudget",`+
					`"message":"The disruption budget web needs 9 healthy pods and has 9 currently"}]}`,
				1,
			),
			want: []Call{{"create", "eviction", "shop", "web", "u", "haulout", 429, "web", received, answered}},
		},
		"an eviction of whichever pod has the name": {
			log:  line("create", "eviction", "201", noUID),
			want: []Call{{"create", "eviction", "shop", "web", "", "haulout", 201, "", received, answered}},
		},
		"a dry run is none": {log: line("create", "eviction", "201", dryRun)},
		"a deletion": {
			log:  line("delete", "", "200", `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"u"}}`),
			want: []Call{{"delete", "", "shop", "web", "u", "haulout", 200, "", received, answered}},
		},
		"a deletion without a body": {
			log:  line("delete", "", "200", ""),
			want: []Call{{"delete", "", "shop", "web", "", "haulout", 200, "", received, answered}},
		},
		"a line that is being written": {log: strings.TrimSuffix(line("create", "eviction", "201", withUID), "\n")},
		"a line that is damaged":       {log: "{\n", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadCalls(strings.NewReader(test.log))
			must.True(t, (err != nil) == test.bad, "error is %v", err)
			if !slices.EqualFunc(got, test.want, func(a, b Call) bool {
				times := a.Received.Equal(b.Received) && a.Answered.Equal(b.Answered)
				a.Received, a.Answered, b.Received, b.Answered = time.Time{}, time.Time{}, time.Time{}, time.Time{}
				return times && a == b
			}) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestAuditLogBeginsWhereItIsOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if _, err := OpenAuditLog(path); err == nil {
		t.Error("a missing log is no error")
	}
	deletion, eviction := line("delete", "", "200", ""), line("create", "eviction", "201", withUID)
	for name, test := range map[string]struct {
		before, after string
		// want has the verbs of the new calls.
		want []string
	}{
		"after a line":                     {deletion, eviction, []string{"create"}},
		"at the beginning":                 {"", eviction + deletion, []string{"create", "delete"}},
		"while a line is being written":    {deletion + eviction[:40], eviction[40:] + deletion, []string{"delete"}},
		"while one is that never ends":     {deletion + eviction[:40], eviction[40:50], nil},
		"while all but its end is written": {strings.TrimSuffix(eviction, "\n"), "\n" + deletion, []string{"delete"}},
		"and nothing comes":                {deletion, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			must.Do(t, os.WriteFile(path, []byte(test.before), 0o600))
			log := must.Get(OpenAuditLog(path))(t)
			must.Do(t, os.WriteFile(path, []byte(test.before+test.after), 0o600))
			calls := must.Get(log.Calls())(t)
			var got []string
			for _, call := range calls {
				got = append(got, call.Verb)
			}
			is.Slices(t, got, test.want)
		})
	}
}

func TestEvictedTwice(t *testing.T) {
	granted := Call{Subresource: "eviction", Name: "web", UID: "u", Code: 201}
	refused, another, anybody := granted, granted, granted
	refused.Code, another.UID, anybody.UID = 429, "v", ""
	deleted := Call{Verb: "delete", Name: "web", UID: "u", Code: 200}
	for name, test := range map[string]struct {
		calls []Call
		want  []string
	}{
		"tries until one is granted": {calls: []Call{refused, refused, granted, deleted}},
		"two pods of one name":       {calls: []Call{granted, another}},
		"two that are granted": {
			calls: []Call{granted, refused, granted}, want: []string{"was evicted more than once"},
		},
		"three that are granted are told once": {
			calls: []Call{granted, granted, granted}, want: []string{"was evicted more than once"},
		},
		"one that may hit another pod": {calls: []Call{anybody}, want: []string{"without its UID"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, EvictedTwice(Log{Calls: test.calls}), test.want...)
		})
	}
}
