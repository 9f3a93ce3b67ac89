// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"errors"
	"fmt"
	"net/url"
	"time"
)

// answerWithin is the time after which a command that follows an object shows that a request has no
// answer. client-go repeats some requests for minutes before it returns an error.
const answerWithin = 15 * time.Second

// reads records whether the server answers the reads of an object that a command follows.
type reads struct {
	// since is the time of the first request after the last answer; zero if there is none.
	since time.Time
	// err is the error of the last request that has ended.
	err error
}

// begin records that a request is sent.
func (r *reads) begin(now time.Time) {
	if r.since.IsZero() {
		r.since = now
	}
}

// end records that the server has answered a request, or its error.
func (r *reads) end(err error) {
	if r.err = err; err == nil {
		r.since = time.Time{}
	}
}

// note returns the note that is shown while reads fail; "" while the server answers.
func (r *reads) note(now time.Time) string {
	if r.since.IsZero() || r.err == nil && now.Sub(r.since) < answerWithin {
		return ""
	}
	note := "this may be out of date: the server has not answered since " + r.since.UTC().Format(timeOfDay)
	if r.err == nil {
		return note
	}
	err := r.err
	// The URL is long, and differs between the requests of a watch.
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	return fmt.Sprintf("%s; retrying (%v)", note, err)
}
